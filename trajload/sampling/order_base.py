"""What an order is, what it is made from, and the checks that all orders share."""

# Shapes: B windows, E episodes

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from trajload.errors import ConfigError, WindowError
from trajload.rng import check_seed, key_u64
from trajload.sampling.permute import NUM_ROUNDS
from trajload.types import Int64Array

__all__ = ["EpochCache", "Order", "OrderInputs", "check_epoch", "check_num_windows", "check_range", "round_keys"]

T = TypeVar("T")


class Order(Protocol):
    """For each epoch a bijection between offsets and window ids. Pure and thread-safe.

    Offsets lie in [0, num_windows). An order that leaves windows out (`continuous`) has a smaller `num_windows` than
    the table; one that draws with replacement (`weighted`) is no bijection, and its `offsets` raises ConfigError.
    """

    @property
    def version(self) -> str:
        """Name and version, for instance 'shuffled/1': it stands in the state."""
        ...

    @property
    def num_windows(self) -> int:
        """Windows of one epoch."""
        ...

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        """Return the window id at each offset of `epoch`: int64, same shape."""
        ...

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        """Return the offset at which each window comes in `epoch`; the inverse of `window_ids`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OrderInputs:
    """All that an order may depend on besides its own parameters."""

    num_windows: int
    seed: int
    first_E1: Int64Array | None = None
    """Window ids of episode e are [first_E1[e], first_E1[e + 1])."""
    global_batch_size: int | None = None
    tile_windows: int = 1
    """Window ids from one window to the one that continues it without overlap."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_windows", check_num_windows(self.num_windows))
        object.__setattr__(self, "seed", check_seed(self.seed))

    def layout(self, version: str) -> tuple[Int64Array, int]:
        """Return (first_E1, global_batch_size), or raise ConfigError naming the order that needs them."""
        if self.first_E1 is None or self.global_batch_size is None:
            raise ConfigError(
                f"order={version!r} depends on episodes and batch size: pass table= and global_batch_size= to make_order."
            )
        return self.first_E1, self.global_batch_size


class EpochCache(Generic[T]):
    """The last two epochs' tables. A batch spans two epochs at most times, so each is made once.

    Takes no lock, so that a forked child can never find one held: the tuple is replaced whole, and two threads that
    miss at the same time make the same table twice.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._recent: tuple[tuple[int, T], ...] = ()

    def get(self, epoch: int) -> T:
        """Return the table of `epoch`, made if it is not one of the last two."""
        recent = self._recent
        for known, value in recent:
            if known == epoch:
                return value
        value = self._make(epoch)
        self._recent = (*recent[-1:], (epoch, value))
        return value


def round_keys(seed: int, purpose: str, epoch: int, part: int = 0) -> tuple[int, ...]:
    """Return `NUM_ROUNDS` keys of a bijection; different `part`s of an order are independent."""
    half = NUM_ROUNDS // 2
    return key_u64(seed, purpose, epoch, 2 * part, num=half) + key_u64(seed, purpose, epoch, 2 * part + 1, num=half)


def check_num_windows(num_windows: int) -> int:
    """Return `num_windows` if it is at least 1, else raise ConfigError."""
    if num_windows < 1:
        raise ConfigError(f"num_windows={num_windows!r} is invalid: expected at least 1.")
    return int(num_windows)


def check_epoch(epoch: int) -> int:
    """Return `epoch` if it is in [0, 2**63), else raise ConfigError."""
    if not 0 <= epoch < 2**63:
        raise ConfigError(f"epoch={epoch!r} is out of range: expected 0 <= epoch < 2**63.")
    return int(epoch)


def check_range(what: str, value_B: Int64Array, num: int, bound: str = "num_windows") -> Int64Array:
    """Return `value_B` as int64 if all lie in [0, num), else raise WindowError naming one that does not."""
    value_B = np.asarray(value_B, dtype=np.int64)
    if value_B.size:
        low, high = int(value_B.min()), int(value_B.max())
        if low < 0 or high >= num:
            raise WindowError(
                f"{what} {low if low < 0 else high} does not exist: expected 0 <= {what} < {bound}={num}."
            )
    return value_B
