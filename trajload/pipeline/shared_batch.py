"""Batch memory that a loader and its worker processes share: one anonymous file a batch.

An anonymous file (memfd) has no name, so nothing is left of it when the last process that maps it ends, however it
ends; and it does not count against the size of /dev/shm, which containers keep small.
"""

# Shapes: B rows of a rank's batch

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from trajload.errors import StageFailedError
from trajload.pipeline.build import BatchBuilder
from trajload.types import NDArray

__all__ = ["Arena", "SharedBuffer", "SharedPool", "anonymous_file", "arena_of", "map_file"]

_ALIGNMENT = 64
_MIN_BYTES = mmap.PAGESIZE


class Arena:
    """Where each tensor of a batch stands in one piece of memory. The same in every process, given the same shapes."""

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self._places: dict[str, tuple[int, int, tuple[int, ...], np.dtype[Any]]] = {}
        end = 0
        for key, (shape, dtype) in shapes.items():
            size = math.prod(shape) * dtype.itemsize
            self._places[key] = (end, end + size, shape, dtype)
            end = -(-(end + size) // _ALIGNMENT) * _ALIGNMENT
        self.num_bytes = -(-max(end, _MIN_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE

    def arrays(self, memory: NDArray, rows: slice = slice(None)) -> dict[str, NDArray]:
        """Return views (B, ...) of the given rows of every tensor, by key."""
        return {
            key: memory[start:stop].view(dtype).reshape(shape)[rows]
            for key, (start, stop, shape, dtype) in self._places.items()
        }


def arena_of(builder: BatchBuilder, num_rows: int) -> Arena:
    """Return where the tensors of a batch of `num_rows` stand."""
    return Arena(builder.slot_plan(num_rows).shapes)


# ---- memory of the operating system ----


def anonymous_file(name: str, num_bytes: int) -> int:
    """Return the descriptor of a fresh anonymous file, closed on exec.

    Raises:
        StageFailedError: No descriptor or no memory is left.
    """
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, num_bytes)
    except OSError as err:
        raise StageFailedError(
            f"no shared memory of {num_bytes} bytes to be had: {err}. Keep fewer batches, or use workers='threads'."
        ) from err
    return fd


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def map_file(fd: int, num_bytes: int) -> NDArray:
    """Return the bytes of a file as an array; unmapped when neither it nor any view of it is left.

    Not by `mmap.mmap`, which keeps a descriptor open for each mapping: a consumer may hold a thousand batches.
    """
    libc = _libc()
    address = libc.mmap(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise StageFailedError(
            f"shared memory of {num_bytes} bytes cannot be mapped: {os.strerror(code)}. Keep fewer batches in memory."
        )
    memory = np.frombuffer(memoryview((ctypes.c_ubyte * num_bytes).from_address(address)), dtype=np.uint8)
    weakref.finalize(memory, libc.munmap, address, num_bytes).atexit = False
    return memory


# ---- buffers that come back ----


class SharedBuffer:
    """The memory of one batch, as its owner sees it."""

    __slots__ = ("fd", "memory", "num_bytes", "number")

    def __init__(self, number: int, num_bytes: int) -> None:
        self.number, self.num_bytes = number, num_bytes
        self.fd = anonymous_file("trajload-batch", num_bytes)
        try:
            # Nobody can cut it short under a process that writes it, which would be a bus error.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.memory = map_file(self.fd, num_bytes)
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Close the descriptor. The memory lasts as long as anybody looks at it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SharedPool:
    """Buffers, used again once the consumer has let go of every tensor over them.

    `take`, `discard_spare` and `close` are called under the owner's lock; buffers come back from wherever Python drops
    the last view, without a lock.

    Args:
        max_free: Buffers kept that are not in use.
        max_leased: Buffers given away that may come back. Of more than that the ones held longest give up their
            descriptor and will be freed, so that a consumer may hold any number of batches.
    """

    def __init__(self, max_free: int, max_leased: int) -> None:
        self._max_free, self._max_leased = max_free, max_leased
        self._free: deque[SharedBuffer] = deque()
        self._all: dict[int, SharedBuffer] = {}
        self._leased: dict[int, None] = {}
        """Numbers, in the order in which they were given away."""
        self.num_allocated = 0
        """Buffers ever allocated; stays level in a steady run."""
        self._closed = False

    def take(self, num_bytes: int) -> SharedBuffer:
        """Return a buffer of at least so many bytes, with undefined content."""
        for _ in range(len(self._free)):
            buffer = self._free.pop()  # the last to come back is the likeliest to be in caches
            if buffer.num_bytes >= num_bytes:
                return buffer
            self._free.appendleft(buffer)
        buffer = SharedBuffer(self.num_allocated, num_bytes)
        self._all[buffer.number] = buffer
        self.num_allocated += 1
        return buffer

    def lease(self, buffer: SharedBuffer) -> NDArray:
        """Return the buffer's bytes to be given away: the buffer comes back when no view of them is left."""
        # Over a memoryview: NumPy's views of views refer to the outermost array, which must be this one.
        lease: NDArray = np.frombuffer(memoryview(buffer.memory.data), dtype=np.uint8)
        self._leased[buffer.number] = None
        weakref.finalize(lease, _give_back, weakref.ref(self), buffer).atexit = False
        return lease

    def give_back(self, buffer: SharedBuffer) -> None:
        """Keep a buffer that nobody uses, unless it has been given up."""
        self._leased.pop(buffer.number, None)
        if not self._closed and buffer.fd >= 0:
            self._free.append(buffer)

    def discard_spare(self) -> list[int]:
        """Give up buffers beyond what is worth keeping, and return their numbers: nobody will be sent them again."""
        gone = []
        while len(self._free) > self._max_free:
            gone.append(self._free.popleft().number)
        # list() is one step for the interpreter: buffers come back at any time.
        for number in list(self._leased)[: -self._max_leased]:
            self._leased.pop(number, None)
            gone.append(number)
        for number in gone:
            self._all.pop(number).close()
        return gone

    def close(self) -> None:
        """Close every descriptor. Idempotent. Batches in use stay whole."""
        self._closed = True
        self._free.clear()
        for buffer in self._all.values():
            buffer.close()
        self._all.clear()


def _give_back(pool_ref: weakref.ref[SharedPool], buffer: SharedBuffer) -> None:
    pool = pool_ref()
    if pool is not None:
        pool.give_back(buffer)
