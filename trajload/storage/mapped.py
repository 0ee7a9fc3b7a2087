"""Files seen as memory. A mapping holds no descriptor, of which a process commonly has 1024."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

from trajload.storage.regular import open_regular_fd
from trajload.types import PathLikeStr

__all__ = ["MappedFile"]


class MappedFile:
    """A whole file mapped for reading at `address`, unmapped when the object is dropped.

    Whoever uses an address keeps the object. Python's own `mmap` would keep a descriptor for each file.

    Raises:
        OSError: The file cannot be opened, is no regular file, or cannot be mapped.
    """

    __slots__ = ("__weakref__", "_path", "_seen", "address", "num_bytes")

    def __init__(self, path: PathLikeStr) -> None:
        self._path = os.fspath(path)
        fd = open_regular_fd(path)
        try:
            found = os.fstat(fd)
            self._seen, self.num_bytes = _identity(found), found.st_size
            self.address = _map(fd, self.num_bytes) if self.num_bytes else 0
        finally:
            os.close(fd)
        if self.address:
            weakref.finalize(self, _unmap, self.address, self.num_bytes).atexit = False

    @property
    def is_unchanged(self) -> bool:
        """Whether the file still is what was mapped, as far as size and times tell.

        Looked at right before memory is read: behind the end of a file that was cut the system sends SIGBUS, which ends the
        process, and what was written over a file is seen at once.
        """
        try:
            return _identity(os.stat(self._path)) == self._seen
        except OSError:
            return False


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _libc() -> ctypes.CDLL:
    # Its functions get their types on this object, which no one else shares.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _map(fd: int, num_bytes: int) -> int:
    address = _libc().mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(address)


def _unmap(address: int, num_bytes: int) -> None:
    _libc().munmap(address, num_bytes)
