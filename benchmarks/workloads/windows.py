"""The globally random order for loaders that are handed a list of windows: the same for all of them."""

# Shapes: N windows

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workloads.spec import Workload


def locate(workload: Workload, window: int) -> tuple[int, int]:
    """Return (episode, first step) of a window number; windows are numbered episode by episode."""
    return divmod(window, workload.starts)


def epoch_order(workload: Workload, epoch: int, seed: int = 7) -> np.ndarray:
    """Return the numbers of all windows in the random order of `epoch`, int64 (N,)."""
    rng = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return rng.permutation(workload.num_windows)


def endless(workload: Workload, seed: int = 7) -> Iterator[int]:
    """Yield window numbers without end: every window once an epoch."""
    epoch = 0
    while True:
        yield from epoch_order(workload, epoch, seed).tolist()
        epoch += 1


def listed(workload: Workload, num_windows: int, seed: int = 7) -> list[int]:
    """Return the first `num_windows` of `endless`: for loaders that need a list with a length."""
    epochs = -(-num_windows // workload.num_windows)
    order = [epoch_order(workload, epoch, seed) for epoch in range(epochs)]
    return np.concatenate(order)[:num_windows].tolist()
