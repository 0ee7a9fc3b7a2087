"""One piece of memory that blocks of decoded pictures are cut from, counted to the byte.

Blocks come and go all the time and most have one size. Cutting them from memory that is taken once spares the kernel
mapping and zeroing fresh pages for each, and the bound holds whatever their sizes are. Addresses are handed out from the
low end, and memory is only touched where a block was written, so a pool that is never full never costs all of it.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from trajload.types import NDArray

__all__ = ["ALIGNMENT", "Arena", "aligned"]

ALIGNMENT = 64


def aligned(num_bytes: int) -> int:
    """Return `num_bytes` rounded up to what an arena hands out."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """The smallest hole that fits, the lowest of equals; neighbours joined when they come back. Not thread-safe."""

    def __init__(self, num_bytes: int) -> None:
        """Take `num_bytes`, rounded down to whole cache lines; the kernel gives pages as they are written."""
        self.num_bytes = num_bytes // ALIGNMENT * ALIGNMENT
        raw = np.empty(self.num_bytes + ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self.memory: NDArray = raw[start : start + self.num_bytes]
        self.address: int = self.memory.ctypes.data
        self.used_bytes = 0
        self._free: list[tuple[int, int]] = [(0, self.num_bytes)] if self.num_bytes else []
        """(offset, size) of each hole, by offset, none touching the next."""

    def take(self, num_bytes: int) -> int | None:
        """Return the offset of `num_bytes` of free memory, or None where no hole is large enough."""
        size = aligned(num_bytes)
        if size == 0:
            return 0
        # A short block in the hole of a long one would leave a hole too small for the next long one.
        found, smallest = -1, self.num_bytes + 1
        for i, (_, hole) in enumerate(self._free):
            if size <= hole < smallest:
                found, smallest = i, hole
                if hole == size:
                    break
        if found < 0:
            return None
        offset = self._free[found][0]
        if smallest == size:
            del self._free[found]
        else:
            self._free[found] = (offset + size, smallest - size)
        self.used_bytes += size
        return offset

    def give(self, offset: int, num_bytes: int) -> None:
        """Take memory back that `take` handed out."""
        size = aligned(num_bytes)
        if size == 0:
            return
        self.used_bytes -= size
        i = bisect_left(self._free, (offset, 0))
        if i < len(self._free) and self._free[i][0] == offset + size:
            size += self._free.pop(i)[1]
        if i and sum(self._free[i - 1]) == offset:
            before, hole = self._free[i - 1]
            self._free[i - 1] = (before, hole + size)
        else:
            self._free.insert(i, (offset, size))
