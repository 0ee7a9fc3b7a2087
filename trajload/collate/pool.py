"""Memory of large tensors, used again once the consumer has let go of it.

A fresh batch of video is tens of megabytes of pages that the kernel must map and zero one by one, which costs several
times the colour conversion that fills them. So the memory of a dropped tensor is kept and handed out again.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import numpy as np

from trajload.types import NDArray

__all__ = ["MIN_POOLED_BYTES", "TensorPool"]

MIN_POOLED_BYTES = 1 << 18
"""The memory of smaller ones is used again by malloc itself."""
_ALIGNMENT = 64


class TensorPool:
    """Hands out uninitialised memory for tensors, and takes it back when nothing refers to it any more.

    Nothing means nothing: tensors made of the array, their views, and arrays made of them all keep the memory out of the
    pool. Each tensor has a storage of its own, so saving one saves no more than it shows.
    Thread-safe without a lock, since memory may come back in the middle of anything, wherever Python drops an object.
    """

    def __init__(self, max_free: int, *, max_free_bytes: int = 0, pin_memory: bool = False) -> None:
        """Keep pieces that are not in use: of each size `max_free`, or more where those take no more than `max_free_bytes`.

        They are page-locked where asked for.
        """
        self._max_free, self._max_free_bytes = max_free, max_free_bytes
        self.pin_memory = pin_memory
        self._free: dict[int, deque[NDArray]] = {}
        self._leases: dict[int, _Lease] = {}
        """By id: a weak reference that is dropped tells nothing."""
        self._self = weakref.ref(self)
        self.num_allocated = 0
        """Pieces ever allocated; stays level in a steady run."""

    def empty_array(self, shape: tuple[int, ...], np_dtype: np.dtype[Any]) -> NDArray:
        """Return an array with undefined values, of which one tensor may be made (`torch.from_numpy`)."""
        num_bytes = math.prod(shape) * np_dtype.itemsize
        if num_bytes < MIN_POOLED_BYTES:
            return np.empty(shape, np_dtype)
        free = self._free.get(num_bytes)
        if free is None:
            free = self._free.setdefault(num_bytes, deque())
        try:
            piece = free.pop()
        except IndexError:
            raw = self._allocate(num_bytes + _ALIGNMENT)
            start = -raw.ctypes.data % _ALIGNMENT
            piece = raw[start : start + num_bytes]
            self.num_allocated += 1
        # A tensor's storage holds this very array object, so its end is the end of the last user.
        array = piece.view(np_dtype).reshape(shape)
        lease = _Lease(array, _give_back)
        lease.pool, lease.piece = self._self, piece
        self._leases[id(lease)] = lease
        return array

    def _allocate(self, num_bytes: int) -> NDArray:
        if not self.pin_memory:
            return np.empty(num_bytes, dtype=np.uint8)
        import torch

        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_new_pool, (self._max_free, self._max_free_bytes))  # memory stays where it is, and so does the device

    def _take_back(self, piece: NDArray) -> None:
        free = self._free.get(piece.nbytes)
        if free is not None and len(free) < max(self._max_free, self._max_free_bytes // piece.nbytes):
            free.append(piece)

    def clear(self) -> None:
        """Forget the memory that is not in use. What is in use comes back no more."""
        self._free = {}


def _new_pool(max_free: int, max_free_bytes: int) -> TensorPool:
    return TensorPool(max_free, max_free_bytes=max_free_bytes)


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """Who has a piece. `weakref.finalize` does the same in four times the time, which small batches feel."""

    __slots__ = ("piece", "pool")
    piece: NDArray
    pool: weakref.ref[TensorPool]


def _give_back(lease: _Lease) -> None:
    pool = lease.pool()
    if pool is not None:
        del pool._leases[id(lease)]
        pool._take_back(lease.piece)
