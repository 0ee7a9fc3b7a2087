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

    __slots__ = ("__weakref__", "address", "num_bytes")

    def __init__(self, path: PathLikeStr) -> None:
        fd = open_regular_fd(path)
        try:
            self.num_bytes = os.fstat(fd).st_size
            self.address = _map(fd, self.num_bytes) if self.num_bytes else 0
        finally:
            os.close(fd)
        if self.address:
            weakref.finalize(self, _unmap, self.address, self.num_bytes).atexit = False


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
