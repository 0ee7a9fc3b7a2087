"""In which order the windows of an epoch come: versioned bijections between offset and window id.

`position -> (epoch, offset) = divmod(position, num_windows)`; an order maps the offset to a window id, anew in each
epoch. A version's arithmetic never changes, so that an old state resumes in the order it was saved in; a better rule
gets a new version. Source: docs/decisions/0041-order-versions.md
"""

# Shapes: B windows

from __future__ import annotations

from typing import Protocol

import numpy as np

from trajload.errors import ConfigError, WindowError
from trajload.rng import check_seed, key_u64
from trajload.sampling.permute import NUM_ROUNDS, KeyedPermutation
from trajload.types import Int64Array

__all__ = ["Order", "SequentialOrder", "ShuffledOrder", "make_order", "resolve_order"]


class Order(Protocol):
    """For each epoch a bijection between offsets and window ids, both in [0, num_windows). Pure and thread-safe."""

    @property
    def version(self) -> str:
        """Name and version, for instance 'shuffled/1': it stands in the state."""
        ...

    @property
    def num_windows(self) -> int: ...

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        """Return the window id at each offset of `epoch`: int64, same shape."""
        ...

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        """Return the offset at which each window comes in `epoch`; the inverse of `window_ids`."""
        ...


class SequentialOrder:
    """Windows by rising id, the same in every epoch: for evaluation and export."""

    version = "sequential/1"

    def __init__(self, *, num_windows: int, seed: int) -> None:
        # The seed decides nothing here; taking it keeps all orders alike.
        self.num_windows = _check_num_windows(num_windows)
        check_seed(seed)

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        _check_epoch(epoch)
        return _check_range("offset", offset_B, self.num_windows).copy()

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        _check_epoch(epoch)
        return _check_range("window id", window_id_B, self.num_windows).copy()


class ShuffledOrder:
    """All windows once an epoch, as if shuffled uniformly: a keyed bijection per epoch, O(1) memory."""

    version = "shuffled/1"

    def __init__(self, *, num_windows: int, seed: int) -> None:
        self.num_windows = _check_num_windows(num_windows)
        self.seed = check_seed(seed)

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        return self._permutation(epoch).forward(_check_range("offset", offset_B, self.num_windows))

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        return self._permutation(epoch).inverse(_check_range("window id", window_id_B, self.num_windows))

    def _permutation(self, epoch: int) -> KeyedPermutation:
        # Made anew for each call: two hashes of 32 bytes cost less than a cache shared by threads would.
        epoch, half = _check_epoch(epoch), NUM_ROUNDS // 2
        first, second = (key_u64(self.seed, "order", epoch, part, num=half) for part in (0, 1))
        return KeyedPermutation(self.num_windows, first + second)


_ORDERS: dict[str, type[SequentialOrder] | type[ShuffledOrder]] = {
    "sequential/1": SequentialOrder,
    "shuffled/1": ShuffledOrder,
}
_NEWEST = {"sequential": "sequential/1", "shuffled": "shuffled/1"}


def resolve_order(name: str) -> str:
    """Return the version a name stands for: 'shuffled' -> 'shuffled/1'; a version stands for itself.

    Raises:
        ConfigError: Neither a name nor a version of an order; the message lists both.
    """
    version = _NEWEST.get(name, name) if isinstance(name, str) else name
    if version not in _ORDERS:
        allowed = ", ".join(repr(x) for x in (*_NEWEST, *_ORDERS))
        raise ConfigError(f"order={name!r} is unknown: expected one of {allowed}.")
    return version


def make_order(version: str, *, num_windows: int, seed: int) -> Order:
    """Return the order of `version` (a name is taken as its newest version) over `num_windows` windows."""
    return _ORDERS[resolve_order(version)](num_windows=num_windows, seed=seed)


def _check_num_windows(num_windows: int) -> int:
    if num_windows < 1:
        raise ConfigError(f"num_windows={num_windows!r} is invalid: expected at least 1.")
    return int(num_windows)


def _check_epoch(epoch: int) -> int:
    if not 0 <= epoch < 2**63:
        raise ConfigError(f"epoch={epoch!r} is out of range: expected 0 <= epoch < 2**63.")
    return int(epoch)


def _check_range(what: str, value_B: Int64Array, num_windows: int) -> Int64Array:
    value_B = np.asarray(value_B, dtype=np.int64)
    if value_B.size:
        low, high = int(value_B.min()), int(value_B.max())
        if low < 0 or high >= num_windows:
            raise WindowError(
                f"{what} {low if low < 0 else high} does not exist: expected 0 <= {what} < num_windows={num_windows}."
            )
    return value_B
