"""Copies of tensors that nothing else can change, into memory that is used again for the next copy.

Memory that is asked for anew is zeroed by the kernel page by page while it is first written, which takes longer than the
copy itself; pinning memory for a GPU takes longer still. So whoever takes snapshots again and again keeps one `Staging`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from trajload.checkpoint.tensors import dense_strides

__all__ = ["Staging"]


class Staging:
    """Buffers that copies are made into. Those of the last released snapshot are kept. Thread-safe."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, bool], list[Tensor]] = {}
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """Of the buffers that wait for the next snapshot."""
        with self._lock:
            return sum(size * len(buffers) for (size, _), buffers in self._free.items())

    def copy(self, tensor: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return (copy on the CPU, its buffer). From a CUDA device the copy is pinned and may still be under way: `wait`."""
        tensor = tensor.detach().resolve_conj().resolve_neg()
        if tensor.numel() == 0:
            return torch.empty(tensor.shape, dtype=tensor.dtype), None
        is_cuda = tensor.device.type == "cuda"
        buffer = self._take(tensor.numel() * tensor.dtype.itemsize, is_cuda)
        strides = dense_strides(tensor)
        # Bytes are copied as bytes: 4-bit dtypes know no copy.
        source, dtype = (
            (tensor.view(torch.uint8), torch.uint8) if tensor.dtype.itemsize == 1 else (tensor, tensor.dtype)
        )
        flat = buffer.view(dtype)
        target = flat.view(tensor.shape) if strides is None else flat.as_strided(tensor.shape, strides)
        target.copy_(source, non_blocking=is_cuda)
        return target if dtype == tensor.dtype else target.view(tensor.dtype), buffer

    @staticmethod
    def wait(devices: Iterable[torch.device]) -> None:
        """Wait until copies from these devices are complete."""
        for device in {device for device in devices if device.type == "cuda"}:
            torch.cuda.current_stream(device).synchronize()

    def give_back(self, buffers: Iterable[Tensor]) -> None:
        """Keep these buffers for the next copies, and let go of those that were kept before and found no use."""
        free: defaultdict[tuple[int, bool], list[Tensor]] = defaultdict(list)
        for buffer in buffers:
            free[buffer.numel(), buffer.is_pinned() if torch.cuda.is_available() else False].append(buffer)
        with self._lock:
            self._free = dict(free)

    def _take(self, size: int, pinned: bool) -> Tensor:
        with self._lock:
            kept = self._free.get((size, pinned))
            if kept:
                return kept.pop()
        return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
