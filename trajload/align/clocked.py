"""Clocked streams beyond one row a step: between two rows (`linear`), all rows since the step before (`interval`)."""

# Shapes: T places of a window, N rows of a clocked stream, K rows of all intervals together

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trajload.align.rows import clocked_rows, gap_ns, nearest_real, raise_miss
from trajload.errors import AlignError
from trajload.spec import StreamRequest
from trajload.types import BoolArray, Int64Array, NDArray

__all__ = ["ClockedRows", "align_clocked", "interval_rows", "linear_rows", "mix_rows"]


@dataclass(frozen=True, slots=True, eq=False)
class ClockedRows:
    """Which rows of a clocked stream a window takes, and how they become its values."""

    rows: Int64Array
    """(T,) one row each; (2 T,) the rows before, then the rows after, under `linear`; (K,) under `interval`."""
    is_pad_T: BoolArray
    """Outside the episode, or a miss."""
    age_ns_T: Int64Array
    """Time of the place minus time of the row (see `StreamRequest.age`); 0 where `is_pad_T`."""
    weight_T: NDArray | None = None
    """`linear` only: float64 in [0, 1), the part of the row after."""
    count_T: Int64Array | None = None
    """`interval` only: rows of each place, in order."""


def align_clocked(
    times_T: Int64Array,
    is_pad_T: BoolArray,
    stream_times_N: Int64Array,
    request: StreamRequest,
    *,
    tolerance_ns: int | None,
    since_T: Int64Array | None = None,
    steps_T: Int64Array | None = None,
) -> ClockedRows:
    """Return the rows of a clocked stream at `times_T`, by the rule of `request.align`.

    Args:
        times_T: Time of each place, int64 ns.
        is_pad_T: Places outside the episode.
        stream_times_N: Timestamps of the rows, int64 ns, strictly rising, N >= 1.
        request: Rule, and what a miss does; "drop" is decided where windows are numbered and masks here.
        tolerance_ns: Largest distance, inclusive; None = no limit.
        since_T: `interval` only: where the interval of each place begins, exclusive.
        steps_T: Step numbers for error texts.

    Raises:
        AlignError: A miss under on_miss="error", or no row at all.
    """
    times_T = np.asarray(times_T, dtype=np.int64)
    on_miss: Literal["error", "mask"] = "error" if request.on_miss == "error" else "mask"
    if request.align == "interval":
        assert since_T is not None
        return interval_rows(since_T, times_T, is_pad_T, stream_times_N, is_error=on_miss == "error", steps_T=steps_T)
    if request.align == "linear":
        return linear_rows(
            times_T, is_pad_T, stream_times_N, tolerance_ns, is_error=on_miss == "error", steps_T=steps_T
        )
    rows_T, mask_T = clocked_rows(
        times_T,
        is_pad_T,
        stream_times_N,
        align=request.align,
        tolerance_ns=tolerance_ns,
        on_miss=on_miss,
        steps_T=steps_T,
    )
    return ClockedRows(rows_T, mask_T, np.where(mask_T, 0, times_T - np.asarray(stream_times_N)[rows_T]))


def linear_rows(
    times_T: Int64Array,
    is_pad_T: BoolArray,
    stream_times_N: Int64Array,
    tolerance_ns: int | None,
    *,
    is_error: bool = False,
    steps_T: Int64Array | None = None,
) -> ClockedRows:
    """Return the rows before and after each time, and the weight of the row after.

    A time at which a row stands takes that row alone. Before the first and after the last row nothing is invented: a
    miss, as is a neighbour on either side farther than `tolerance_ns`. The weight is a quotient of two exact integer
    differences, so it does not get coarser with the hours.
    """
    time_T, time_N = np.asarray(times_T, dtype=np.int64), _rows_there(stream_times_N)
    last = len(time_N) - 1
    left_T = np.searchsorted(time_N, time_T, side="right").astype(np.int64) - 1
    is_miss_T = left_T < 0
    left_T = np.maximum(left_T, 0)
    is_on_row_T = time_N[left_T] == time_T
    right_T = np.where(is_on_row_T, left_T, np.minimum(left_T + 1, last))
    is_miss_T |= ~is_on_row_T & (left_T == right_T)
    left_gap_T = np.where(is_miss_T, 0, gap_ns(time_N[left_T], time_T))
    right_gap_T = np.where(is_miss_T, 0, gap_ns(time_T, time_N[right_T]))
    if tolerance_ns is not None:
        limit = np.uint64(min(int(tolerance_ns), 2**64 - 1))
        is_miss_T |= (left_gap_T > limit) | (right_gap_T > limit)
    is_pad_T = np.asarray(is_pad_T, dtype=np.bool_)
    is_miss_T &= ~is_pad_T
    if is_error and is_miss_T.any():
        # before the first row or after the last, both neighbours are that row
        is_right_T = (right_gap_T > left_gap_T) if tolerance_ns is not None else np.zeros_like(is_miss_T)
        far_T = np.abs(time_N[np.where(is_right_T, right_T, left_T)] - time_T).astype(np.uint64)
        raise_miss(
            is_miss_T, time_T, np.where(is_right_T, right_T, left_T), far_T, time_N, "linear", tolerance_ns, steps_T
        )
    whole_T = left_gap_T + right_gap_T
    weight_T = np.where(whole_T > 0, left_gap_T.astype(np.float64) / np.maximum(whole_T, 1).astype(np.float64), 0.0)
    mask_T = is_pad_T | is_miss_T
    age_T = np.where(mask_T, 0, time_T - time_N[left_T])
    real_T = nearest_real(is_pad_T)
    rows = np.concatenate([left_T[real_T], right_T[real_T]])
    return ClockedRows(rows, mask_T, age_T, weight_T=weight_T[real_T])


def interval_rows(
    since_T: Int64Array,
    times_T: Int64Array,
    is_pad_T: BoolArray,
    stream_times_N: Int64Array,
    *,
    is_error: bool = False,
    steps_T: Int64Array | None = None,
) -> ClockedRows:
    """Return all rows in (since, time] of each place, one place after the other; none outside the episode.

    A place without any row is a miss.
    """
    time_T, time_N = np.asarray(times_T, dtype=np.int64), _rows_there(stream_times_N)
    is_pad_T = np.asarray(is_pad_T, dtype=np.bool_)
    first_T = np.searchsorted(time_N, np.asarray(since_T, dtype=np.int64), side="right").astype(np.int64)
    stop_T = np.searchsorted(time_N, time_T, side="right").astype(np.int64)
    count_T = np.where(is_pad_T, 0, np.maximum(stop_T - first_T, 0))
    is_miss_T = (count_T == 0) & ~is_pad_T
    if is_error and is_miss_T.any():
        i = int(np.flatnonzero(is_miss_T)[0])
        name = f"step {int(np.asarray(steps_T)[i])}" if steps_T is not None else f"window place {i}"
        raise AlignError(
            f"{name} at {int(time_T[i])} ns has no row in its interval: expected at least one in "
            f"({int(np.asarray(since_T)[i])}, {int(time_T[i])}] ns. Use on_miss='mask'."
        )
    newest_T = time_N[np.maximum(stop_T - 1, 0)]
    age_T = np.where(count_T > 0, time_T - newest_T, 0)
    begin_T = np.cumsum(count_T) - count_T
    rows_K = np.repeat(first_T - begin_T, count_T) + np.arange(int(count_T.sum()), dtype=np.int64)
    return ClockedRows(rows_K, is_pad_T | is_miss_T, age_T, count_T=count_T)


def mix_rows(values_2T: NDArray, weight_T: NDArray, out_T: NDArray) -> None:
    """Write `before + (after - before) * weight`, computed in float64, to `out_T`.

    A weight of 0 gives the row before to the bit, even where the other row holds NaN.
    """
    num_places = len(weight_T)
    before_T, after_T = values_2T[:num_places], values_2T[num_places:]
    out_T[...] = before_T
    is_between_T = weight_T > 0
    if is_between_T.any():
        before = before_T[is_between_T].astype(np.float64)
        weight = weight_T[is_between_T].reshape(-1, *[1] * (before.ndim - 1))
        out_T[is_between_T] = before + (after_T[is_between_T].astype(np.float64) - before) * weight


def _rows_there(stream_times_N: Int64Array) -> Int64Array:
    time_N = np.asarray(stream_times_N, dtype=np.int64)
    if not len(time_N):
        raise AlignError("the stream has no row in this episode: got 0 timestamps, expected at least 1.")
    return time_N
