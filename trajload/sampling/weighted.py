"""weighted/1: windows drawn with replacement, episodes by weight, for prioritised data.

Every position is a draw of its own, keyed by (seed, epoch, offset): an episode with probability
weight / sum of weights, then one of its windows, all equally likely. An epoch is `num_windows` draws.
Weights become integers once; their sums are exact, so the same draw finds the same episode on every machine.
Source: docs/decisions/0046-weighted-order.md
"""

# Shapes: B offsets, E episodes

from __future__ import annotations

from typing import Any

import numpy as np

from trajload.errors import ConfigError
from trajload.rng import key_u64
from trajload.sampling.order_base import OrderInputs, check_epoch, check_range
from trajload.sampling.permute import mix64, njit
from trajload.types import Int64Array, NDArray, UInt64Array

__all__ = ["WeightedOrder", "integer_weights"]

_MAX_TOTAL_BITS = 53
"""Of the sum of weights. A draw of 64 bits then favours no episode by more than one part in 2**11 of its least weight."""
_MAX_WEIGHT_BITS = 32


def integer_weights(weight_E: NDArray) -> Int64Array:
    """Return sampling weights as integers whose sum is below 2**53.

    Integers are kept as they are. Floats are scaled by the largest and rounded to 32 bits, fewer beyond two million
    episodes; a weight above 0 never becomes 0. Each is computed on its own by correctly rounded operations, so the
    result is the same on every machine.

    Raises:
        ConfigError: Not one dimension, no number, negative, not finite, all zero, or integers whose sum is too large.
    """
    weight_E = np.asarray(weight_E)
    if weight_E.ndim != 1 or weight_E.dtype.kind not in "iuf":
        raise ConfigError(
            f"episode_weights are unusable: got shape {weight_E.shape} of {weight_E.dtype}, expected (num_episodes,) numbers."
        )
    is_bad_E = ~np.isfinite(weight_E) | (weight_E < 0)
    if is_bad_E.any():
        episode = int(np.flatnonzero(is_bad_E)[0])
        raise ConfigError(
            f"episode_weights[{episode}]={weight_E[episode].item()!r} is invalid: expected a finite number >= 0."
        )
    if not weight_E.any():
        raise ConfigError("episode_weights are all 0: expected at least one above 0.")
    if weight_E.dtype.kind in "iu":
        if float(weight_E.sum(dtype=np.float64)) >= 2.0**_MAX_TOTAL_BITS:
            raise ConfigError("episode_weights are too large: expected integers with a sum below 2**53, or floats.")
        return weight_E.astype(np.int64)
    weight_E = weight_E.astype(np.float64)
    bits = min(_MAX_WEIGHT_BITS, _MAX_TOTAL_BITS - len(weight_E).bit_length())
    whole_E = np.rint(weight_E / weight_E.max() * float(2**bits)).astype(np.int64)
    return np.where(weight_E > 0, np.maximum(whole_E, 1), 0)


@njit
def _scale(u: Any, n: Any) -> Any:
    """Return floor(u * n / 2**64): u as a draw from [0, n)."""
    low = np.uint64(0xFFFFFFFF)
    s = np.uint64(32)
    a, b, c, d = u >> s, u & low, n >> s, n & low
    mid = a * d + ((b * d) >> s)
    mid2 = b * c + (mid & low)
    return a * c + (mid >> s) + (mid2 >> s)


@njit
def _draw(offset_B: Any, key_4: Any, end_E: Any, first_E1: Any, out_B: Any) -> None:
    golden = np.uint64(0x9E3779B97F4A7C15)
    total = np.uint64(end_E[-1])
    for i in range(offset_B.size):
        number = np.uint64(offset_B[i]) * golden
        t = np.int64(_scale(mix64(mix64(key_4[0] + number) + key_4[1]), total))
        lo, hi = np.int64(-1), np.int64(end_E.size - 1)
        while hi - lo > 1:  # end_E[lo] <= t < end_E[hi]
            mid = (lo + hi) >> 1
            if end_E[mid] <= t:
                lo = mid
            else:
                hi = mid
        num = np.uint64(first_E1[hi + 1] - first_E1[hi])
        out_B[i] = first_E1[hi] + np.int64(_scale(mix64(mix64(key_4[2] + number) + key_4[3]), num))


class WeightedOrder:
    """See the module. Holds one integer per episode; immutable and thread-safe."""

    version = "weighted/1"

    def __init__(self, inputs: OrderInputs, *, weight_E: Int64Array) -> None:
        """Sum the weights.

        Args:
            inputs: Windows of each episode, and seed.
            weight_E: From `integer_weights`. Episodes without windows are not drawn, whatever their weight.

        Raises:
            ConfigError: Not as many weights as episodes, or no window with a weight above 0.
        """
        if inputs.first_E1 is None:
            raise ConfigError(f"order={self.version!r} depends on episodes: pass table= to make_order.")
        self.num_windows = inputs.num_windows
        self.seed = inputs.seed
        self._first_E1 = inputs.first_E1
        num_episodes = len(self._first_E1) - 1
        if len(weight_E) != num_episodes:
            raise ConfigError(
                f"episode_weights have length {len(weight_E)}: expected one for each of {num_episodes} episodes."
            )
        self._end_E = np.cumsum(np.where(np.diff(self._first_E1) > 0, weight_E, 0))
        if self._end_E[-1] == 0:
            raise ConfigError("no window can be drawn: every episode with a weight above 0 is too short for a window.")

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        offset_B = check_range("offset", offset_B, self.num_windows)
        key_4: UInt64Array = np.array(key_u64(self.seed, "weighted", check_epoch(epoch), num=4), dtype=np.uint64)
        out_B = np.empty(offset_B.shape, dtype=np.int64)
        _draw(np.ascontiguousarray(offset_B).reshape(-1), key_4, self._end_E, self._first_E1, out_B.reshape(-1))
        return out_B

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        """Raise ConfigError: a window comes any number of times."""
        raise ConfigError(f"order {self.version!r} draws with replacement: a window has no single offset.")

    def __repr__(self) -> str:
        return f"WeightedOrder({self.num_windows} draws an epoch from {len(self._end_E)} episodes)"
