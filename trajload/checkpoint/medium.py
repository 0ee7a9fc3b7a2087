"""The seam between a store's rules and where its bytes are: one small contract, and the local folder's side of it.

Everything above (generations, commits, retention, pins) speaks to a `Medium`; paths are relative to the store's root,
with slashes. An object store has another `Medium`, and the rules stay the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

from trajload.checkpoint.digests import file_pieces
from trajload.checkpoint.disk import MAX_PIECE_BYTES, NO_LOCKS, UNSUPPORTED, Bytes, Disk, open_regular, settle_ancestors
from trajload.checkpoint.record import MAX_RECORD_BYTES
from trajload.errors import WriterConflictError

__all__ = ["LocalMedium", "Medium"]

_PATIENCE_S = 10.0
_NO_LINKS = UNSUPPORTED | {errno.EPERM, errno.EXDEV, errno.EMLINK}


class Medium(Protocol):
    """Where a store's bytes are. Every method raises OSError (FileNotFoundError where nothing has the name)."""

    name: str
    """For messages: the folder or URL."""

    @property
    def durability(self) -> str:
        """What a commit may promise: 'file+dir', 'file', 'none', 'service', ..."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder, sorted; none where it is absent."""
        ...

    def read(self, path: str) -> bytes:
        """Return a small file, at most `MAX_RECORD_BYTES`."""
        ...

    def size(self, path: str) -> int:
        """Return a file's size in bytes."""
        ...

    def pieces(self, path: str) -> Iterator[Bytes]:
        """Yield a file's bytes; each piece is valid until the next."""
        ...

    def make_folder(self, path: str) -> None:
        """Make a folder that must not be there yet."""
        ...

    def put(self, path: str, pieces: Iterable[Bytes]) -> None:
        """Write a new file, and return once its content is durable."""
        ...

    def settle_file(self, path: str) -> None:
        """Return once the content of a file that somebody else wrote here is durable."""
        ...

    def settle(self, folders: Iterable[str]) -> None:
        """Return once the names in these folders are durable."""
        ...

    def publish(self, path: str, data: bytes, nonce: str) -> bool:
        """Make a small file appear whole, durably, under a name that nobody had; False where somebody else has it."""
        ...

    def hint(self, path: str, data: bytes, nonce: str) -> None:
        """Replace a small file that nothing relies on."""
        ...

    def remove(self, path: str) -> None:
        """Take a file away; no error where it is gone already."""
        ...

    def files(self, folder: str) -> list[str]:
        """Return all files below a folder, as paths."""
        ...

    def prune(self, folder: str) -> None:
        """Remove the empty folders below a folder, and itself, as far as they are empty."""
        ...

    def exclusive(self, path: str) -> AbstractContextManager[None]:
        """Keep others out of what `path` names, for a short while."""
        ...

    def probe(self, nonce: str, *, locks: bool) -> str:
        """Try what commits rely on, once, when the store is opened for writing; return what they may promise."""
        ...

    def age_s(self, folder: str) -> float:
        """Return how long ago something was last written below a folder."""
        ...

    def free_bytes(self) -> int | None:
        """Return the free space, None where there is no such thing."""
        ...

    def local_file(self, path: str) -> Path:
        """Return where a file can be opened on this machine; fetched first where it is elsewhere."""
        ...

    def local_folder(self, path: str) -> Path | None:
        """Return where a folder stands on this machine, None where it does not."""
        ...


class LocalMedium:
    """A folder of a local (or mounted) file system, changed through a `Disk` only."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root = root
        self.disk = disk
        self.name = str(root)
        self.links = True
        self.syncs_files = True
        self.syncs_folders = True
        self._durability = ""

    def _at(self, path: str) -> Path:
        return self.root.joinpath(*path.split("/")) if path else self.root

    # ---- reading ----

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> bytes:
        fd = open_regular(self._at(path))
        with os.fdopen(fd, "rb") as file:
            data = file.read(MAX_RECORD_BYTES + 1)
        if len(data) > MAX_RECORD_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MAX_RECORD_BYTES} bytes, so no record of a store", path)
        return data

    def size(self, path: str) -> int:
        status = os.stat(self._at(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        return status.st_size

    def pieces(self, path: str) -> Iterator[Bytes]:
        return file_pieces(self._at(path))

    def files(self, folder: str) -> list[str]:
        found: list[str] = []
        for entry in self._entries(folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                found += self.files(path)
            else:
                found.append(path)
        return found

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self._at(folder)) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def free_bytes(self) -> int | None:
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def local_file(self, path: str) -> Path:
        return self._at(path)

    def local_folder(self, path: str) -> Path | None:
        return self._at(path)

    def age_s(self, folder: str) -> float:
        # Whoever holds the lock knows that nobody else writes, and whoever does not is not told by a clock.
        return 0.0

    # ---- writing ----

    def make_folder(self, path: str) -> None:
        self.disk.mkdir(self._at(path))

    def put(self, path: str, pieces: Iterable[Bytes]) -> None:
        self._write(path, pieces, sync=self.syncs_files)

    def _write(self, path: str, pieces: Iterable[Bytes], *, sync: bool) -> None:
        where = self._at(path)
        fd = self.disk.create(where)
        try:
            for piece in pieces:
                view = memoryview(piece)
                for start in range(0, view.nbytes, MAX_PIECE_BYTES):
                    self.disk.write(fd, where, view[start : start + MAX_PIECE_BYTES])
            if sync:
                self.syncs_files = self._synced(lambda: self.disk.fsync(fd, where))
        except BaseException:
            with contextlib.suppress(OSError):
                self.disk.close(fd, where)
            raise
        self.disk.close(fd, where)

    def settle_file(self, path: str) -> None:
        self.disk.sync_file(self._at(path))

    def settle(self, folders: Iterable[str]) -> None:
        for folder in folders:
            if self.syncs_folders:
                self.syncs_folders = self._synced(partial(self.disk.fsync_dir, self._at(folder)))

    def _synced(self, sync: Callable[[], None]) -> bool:
        """Sync; False where the file system cannot, which is found out once, when the store is opened."""
        return self._tries(sync, set() if self._durability else UNSUPPORTED)

    def publish(self, path: str, data: bytes, nonce: str) -> bool:
        folder = path.rpartition("/")[0]
        temp = f"{folder}/.{nonce}.tmp" if folder else f".{nonce}.tmp"
        made = False
        if self.links:
            self.put(temp, [data])
            try:
                self.disk.link(self._at(temp), self._at(path))
                made = True
            except FileExistsError:
                # A network file system may repeat a request whose reply was lost, and find its own work.
                made = self._holds(path, data)
                if not made:
                    self._drop(temp)
                    return False
            except OSError as err:
                if err.errno not in _NO_LINKS:
                    raise
        if not made:
            # No hard links here. A record torn by a crash fails its own digest, and uses up one number.
            try:
                self.put(path, [data])
            except FileExistsError:
                return False
        self.settle([folder])
        if self.links:
            self._drop(temp)
        return True

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self.read(path) == data
        except OSError:
            return False

    def _drop(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self.disk.unlink(self._at(path))

    def hint(self, path: str, data: bytes, nonce: str) -> None:
        temp = f".{path}-{nonce}.tmp"
        self._write(temp, [data], sync=False)
        self.disk.rename(self._at(temp), self._at(path))

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.disk.unlink(self._at(path))

    def prune(self, folder: str) -> None:
        for entry in self._entries(folder):
            if entry.is_dir(follow_symlinks=False):
                self.prune(f"{folder}/{entry.name}")
        try:
            self.disk.rmdir(self._at(folder))
        except OSError as err:
            if err.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    @contextlib.contextmanager
    def exclusive(self, path: str) -> Iterator[None]:
        where = self._at(path)
        fd = self.disk.open_lock(where)
        try:
            try:
                got = self.disk.flock(fd, where, patience_s=_PATIENCE_S)
            except OSError as err:
                if err.errno not in NO_LOCKS:
                    raise
                got = True
            if not got:
                raise WriterConflictError(
                    f"{path!r} of {self.name!r} was held by others for {_PATIENCE_S:g} s. Try again."
                )
            yield
        finally:
            os.close(fd)

    # ---- what the file system gives ----

    @property
    def durability(self) -> str:
        return self._durability or "unknown"

    def probe(self, nonce: str, *, locks: bool) -> str:
        probe, other = self._at(f".probe-{nonce}"), self._at(f".probe-{nonce}-link")
        fd = self.disk.create(probe)
        try:
            self.disk.write(fd, probe, b"probe\n")
            self.syncs_files = self._tries(lambda: self.disk.fsync(fd, probe), UNSUPPORTED)
        finally:
            self.disk.close(fd, probe)
        self.links = self._tries(lambda: self.disk.link(probe, other), _NO_LINKS)
        self.syncs_folders = self._tries(lambda: self.disk.fsync_dir(self.root), UNSUPPORTED)
        self.disk.unlink(probe)
        if self.links:
            self.disk.unlink(other)
        if self.syncs_folders:
            settle_ancestors(self.root, self.disk)
        promise = ("file+dir" if self.syncs_folders else "file") if self.syncs_files else "none"
        self._durability = promise if locks else f"{promise}, single writer by agreement"
        return self._durability

    @staticmethod
    def _tries(action: Callable[[], None], unsupported: Set[int]) -> bool:
        try:
            action()
        except OSError as err:
            if err.errno not in unsupported:
                raise
            return False
        return True
