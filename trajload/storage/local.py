"""Files of a local folder, read with pread through a bounded set of open descriptors."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path, PurePosixPath
from typing import Any

from trajload.errors import ConfigError, ShardCorruptError, ShardNotFoundError
from trajload.refs import ByteRange
from trajload.storage.lfs import LFS_ADVICE, is_lfs_pointer
from trajload.storage.locks import ForkLock
from trajload.storage.regular import check_regular, open_regular_fd
from trajload.types import PathLikeStr

__all__ = ["LocalStore", "check_inside"]

_MAX_OPEN_FILES = 128


def check_inside(file: str) -> str:
    """Return `file` if it is a relative path that stays under its root, else raise ConfigError.

    The check is on the name alone: symbolic links inside the folder are followed, since model hubs lay
    datasets out as links into a blob cache.
    """
    path = PurePosixPath(file)
    if not file or path.is_absolute() or ".." in path.parts or "\x00" in file:
        raise ConfigError(
            f"path {file!r} leaves the dataset folder: expected a relative path without '..'. The metadata may be damaged or hostile."
        )
    return file


class _OpenFile:
    """A descriptor that closes itself when the last reader lets go of it, never under a running pread."""

    __slots__ = ("fd",)

    def __init__(self, path: Path) -> None:
        self.fd = -1  # so that __del__ has something to look at where opening fails
        self.fd = open_regular_fd(path)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class LocalStore:
    """A `ByteStore` over one local folder.

    At most 128 files are held open; the least recently used one is closed first. A forked child may go on
    reading: pread shares no file offset.
    """

    def __init__(self, root: PathLikeStr) -> None:
        self.root = os.fspath(root)
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = ForkLock()

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"])  # type: ignore[misc]

    def _file(self, file: str) -> _OpenFile:
        with self._lock:
            handle = self._open.get(file)
            if handle is not None:
                self._open.move_to_end(file)
                return handle
        path = Path(self.root, check_inside(file))
        try:
            handle = _OpenFile(path)
        except OSError as err:
            raise self._not_found(path, err) from None
        with self._lock:
            handle = self._open.setdefault(file, handle)
            self._open.move_to_end(file)
            while len(self._open) > _MAX_OPEN_FILES:
                self._open.popitem(last=False)
        return handle

    def read(self, where: ByteRange) -> bytes:
        handle = self._file(where.file)
        parts: list[bytes] = []
        offset, left = where.offset, where.size
        while left > 0:
            part = os.pread(handle.fd, left, offset)
            if not part:
                size = os.fstat(handle.fd).st_size
                if is_lfs_pointer(os.pread(handle.fd, 256, 0)):
                    raise ShardCorruptError(f"file {where.file!r} {LFS_ADVICE}.")
                raise ShardCorruptError(
                    f"file {where.file!r} is truncated: got {size} bytes, expected at least {where.offset + where.size}. "
                    "Restore it from its source; 'trajload verify' lists all damage."
                )
            parts.append(part)
            offset += len(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self, file: str) -> int:
        path = Path(self.root, check_inside(file))
        try:
            return check_regular(path, path.stat()).st_size
        except OSError as err:
            raise self._not_found(path, err) from None

    @staticmethod
    def _not_found(path: Path, err: OSError) -> ShardNotFoundError:
        if isinstance(err, (FileNotFoundError, NotADirectoryError)):
            return ShardNotFoundError(
                f"file {str(path)!r} does not exist, but the dataset names it. Restore it, or rebuild the dataset."
            )
        return ShardNotFoundError(f"file {str(path)!r} cannot be opened: {err.strerror}. Restore it.")

    def close(self) -> None:
        with self._lock:
            self._open.clear()
