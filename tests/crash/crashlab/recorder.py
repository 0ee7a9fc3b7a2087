"""Writes down every change that a process makes below a folder, as operations that can be replayed in part.

The functions of `os` themselves are watched, not the store's own module, so a broken protocol is recorded as it is.
Whether anything gets past them (a plain `open` for writing, a library) is checked with strace by another test.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

__all__ = ["Op", "Recorder"]


@dataclass(frozen=True)
class Op:
    """One change. `node` is a number that a file or folder keeps through links and renames.

    kind        meaning
    make        entry `name` of folder `parent` now is `node` (a new file or folder, or a further link)
    drop        entry `name` of folder `parent` is gone
    move        entry `name` of `parent` becomes entry `to`, in one step
    write       `data` at `offset` of `node`
    cut         `node` is cut to `offset` bytes
    sync        what was written to file `node`, or the entries of folder `node`, are on the disk now
    """

    kind: str
    node: int = -1
    parent: int = -1
    name: str = ""
    to: str = ""
    offset: int = 0
    data: bytes = b""
    folder: bool = False


class Recorder:
    """Records below `root`, whose node is 0; `ops` grows as things happen."""

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.ops: list[Op] = []
        self._numbers = itertools.count(1)
        self._nodes: dict[tuple[int, int], int] = {self._identity(self.root): 0}
        self._open: dict[int, list[Any]] = {}  # descriptor: [node, offset, appends]

    @staticmethod
    def _identity(path: str | int) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def _inside(self, path: Any) -> str | None:
        """Return the real absolute path if it lies below the root, else None."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        folder, name = os.path.split(os.path.abspath(text))
        full = os.path.join(os.path.realpath(folder), name)
        return full if full.startswith(self.root + os.sep) or full == self.root else None

    def _place(self, full: str) -> tuple[int, str]:
        folder, name = os.path.split(full)
        return self._nodes[self._identity(folder)], name

    def _node(self, path: str | int) -> int:
        """Return the number of a file; inode numbers are used again, so a dropped file's must be forgotten."""
        key = self._identity(path)
        if key not in self._nodes:
            self._nodes[key] = next(self._numbers)
        return self._nodes[key]

    # ---- what os does, watched ----

    def _os_open(self, real: Callable[..., int], path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        full = self._inside(path)
        assert full is None or kwargs.get("dir_fd") is None, "paths relative to a descriptor are not followed"
        is_new = full is not None and bool(flags & os.O_CREAT) and not os.path.lexists(full)
        fd = real(path, flags, *args, **kwargs)
        if full is not None:
            parent, name = self._place(full) if full != self.root else (-1, "")
            node = self._node(fd)
            if is_new:
                self.ops.append(Op("make", node, parent, name))
            elif flags & os.O_TRUNC and flags & (os.O_WRONLY | os.O_RDWR):
                self.ops.append(Op("cut", node))
            self._open[fd] = [node, 0, bool(flags & os.O_APPEND)]
        return fd

    def _os_write(self, real: Callable[..., int], fd: int, data: Any) -> int:
        done = real(fd, data)
        if fd in self._open:
            node, offset, appends = self._open[fd]
            offset = os.fstat(fd).st_size - done if appends else offset
            self.ops.append(Op("write", node, offset=offset, data=bytes(memoryview(data).cast("B")[:done])))
            self._open[fd][1] = offset + done
        return done

    def _os_pwrite(self, real: Callable[..., int], fd: int, data: Any, offset: int) -> int:
        done = real(fd, data, offset)
        if fd in self._open:
            piece = bytes(memoryview(data).cast("B")[:done])
            self.ops.append(Op("write", self._open[fd][0], offset=offset, data=piece))
        return done

    def _os_ftruncate(self, real: Callable[..., None], fd: int, length: int) -> None:
        real(fd, length)
        if fd in self._open:
            self.ops.append(Op("cut", self._open[fd][0], offset=length))

    def _os_fsync(self, real: Callable[..., None], fd: int) -> None:
        real(fd)
        if fd in self._open:
            self.ops.append(Op("sync", self._open[fd][0], folder=stat.S_ISDIR(os.fstat(fd).st_mode)))

    def _os_close(self, real: Callable[..., None], fd: int) -> None:
        self._open.pop(fd, None)
        real(fd)

    def _os_mkdir(self, real: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
        real(path, *args, **kwargs)
        if (full := self._inside(path)) is not None:
            parent, name = self._place(full)
            self.ops.append(Op("make", self._node(full), parent, name, folder=True))

    def _os_link(self, real: Callable[..., None], source: Any, target: Any, **kwargs: Any) -> None:
        real(source, target, **kwargs)
        if (full := self._inside(target)) is not None:
            self.ops.append(Op("make", self._node(full), *self._place(full)))

    def _os_remove(self, real: Callable[..., None], path: Any, **kwargs: Any) -> None:
        full = self._inside(path)
        assert full is None or kwargs.get("dir_fd") is None, "paths relative to a descriptor are not followed"
        key = found = None
        if full is not None and os.path.lexists(full):
            found, key = os.lstat(full), self._identity(full)
        real(path, **kwargs)
        if full is not None and found is not None:
            self.ops.append(Op("drop", self._nodes[key], *self._place(full)))  # type: ignore[index]
            if stat.S_ISDIR(found.st_mode) or found.st_nlink == 1:
                del self._nodes[key]  # type: ignore[arg-type]

    def _os_rename(self, real: Callable[..., None], source: Any, target: Any, **kwargs: Any) -> None:
        old, new = self._inside(source), self._inside(target)
        replaced = self._identity(new) if new is not None and os.path.lexists(new) else None
        last = replaced is not None and (os.path.isdir(new) or os.stat(new).st_nlink == 1)  # type: ignore[arg-type]
        real(source, target, **kwargs)
        if new is not None:
            assert old is not None and os.path.dirname(old) == os.path.dirname(new), "renames stay in their folder"
            parent, to = self._place(new)
            self.ops.append(Op("move", self._node(new), parent, os.path.basename(old), to))
            if last:
                del self._nodes[replaced]  # type: ignore[arg-type]

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Watch while the block runs."""
        watched: dict[str, Callable[..., Any]] = {
            "open": self._os_open, "write": self._os_write, "pwrite": self._os_pwrite, "fsync": self._os_fsync,
            "fdatasync": self._os_fsync,
            "close": self._os_close, "mkdir": self._os_mkdir, "link": self._os_link, "unlink": self._os_remove,
            "remove": self._os_remove, "rmdir": self._os_remove, "rename": self._os_rename, "replace": self._os_rename,
            "ftruncate": self._os_ftruncate,
        }  # fmt: skip
        with ExitStack() as stack:
            for name, watcher in watched.items():
                stack.enter_context(mock.patch.object(os, name, _bound(watcher, getattr(os, name))))
            yield self


def _bound(watcher: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return watcher(real, *args, **kwargs)

    return call
