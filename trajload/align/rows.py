"""Which row of each stream stands at each step of a window. Integers only: no float ever decides a row.

Beyond the episode's ends a window repeats its nearest real step (`_is_pad` True); a clocked stream does the same with
the row of that step. Source: docs/decisions/0042-alignment.md, 0048-windows-of-each-stream.md
"""

# Shapes: B windows, T steps, N rows of a clocked stream; `*T` = (T,) or (B, T)

from __future__ import annotations

import functools
from fractions import Fraction
from typing import NoReturn

import numpy as np

from trajload.errors import AlignError, ConfigError, WindowError
from trajload.spec import Align, Miss, Pad, StreamRequest, StreamSpec, Window
from trajload.types import BoolArray, Int8Array, Int64Array

__all__ = [
    "clocked_rows",
    "default_tolerance_ns",
    "gap_ns",
    "nearest_real",
    "raise_miss",
    "rows_to_zero",
    "step_flags",
    "stepwise_rows",
    "window_offsets",
    "window_steps",
]


def window_steps(start: int | Int64Array, window: Window) -> Int64Array:
    """Return the steps of a window, not cut at the episode's ends: (T,) for one anchor, (B, T) for (B,) anchors."""
    start_1 = np.asarray(start, dtype=np.int64)[..., None]
    return start_1 + window_offsets(window)


def window_offsets(window: Window) -> Int64Array:
    """Return the window's steps as offsets from its anchor, (T,), read-only."""
    return _offsets(window.first_offset, window.dilation, window.num_steps)


@functools.lru_cache(maxsize=64)
def _offsets(first: int, dilation: int, num_steps: int) -> Int64Array:
    """Return `window_offsets`, which are asked for several times a window."""
    offsets_T = first + dilation * np.arange(num_steps, dtype=np.int64)
    offsets_T.flags.writeable = False
    return offsets_T


def stepwise_rows(
    start: int | Int64Array,
    num_steps_episode: int | Int64Array,
    window: Window,
    offsets_T: Int64Array | None = None,
) -> tuple[Int64Array, BoolArray]:
    """Return the rows of a stepwise stream in a window, and which of them lie outside the episode.

    Args:
        start: Anchor of the window (its first step, without history), or of B windows (B,).
        num_steps_episode: Steps of its episode, or of each window's episode (B,).
        window: Length, dilation, history and padding.
        offsets_T: Steps from the anchor, rising, of a stream that has its own; None takes the window's.

    Returns:
        rows_T: int64 (T,) or (B, T), clamped to the episode's first and last step.
        is_pad_T: bool, same shape, True where the step does not exist.

    Raises:
        WindowError: The anchor lies outside the episode, or a step does under pad="none".
    """
    offsets_T = window_offsets(window) if offsets_T is None else offsets_T
    low, high = int(offsets_T[0]), int(offsets_T[-1])
    # Most windows lie inside their episode: two calls of NumPy instead of fifteen, for each window and stream.
    if isinstance(start, int) and isinstance(num_steps_episode, int):
        first, last = start + min(low, 0), start + max(high, 0)
        if first >= 0 and last < num_steps_episode:
            return offsets_T + start, np.zeros(offsets_T.shape, dtype=np.bool_)
    start_1 = np.asarray(start, dtype=np.int64)
    num_steps_1 = np.asarray(num_steps_episode, dtype=np.int64)
    is_bad = (start_1 < 0) | (start_1 >= num_steps_1)
    if window.pad == "none":
        is_bad |= (start_1 + low < 0) | (start_1 + high >= num_steps_1)
    if np.any(is_bad):
        i = int(np.flatnonzero(is_bad)[0])
        bad_start, bad_num = (int(np.broadcast_to(x, np.shape(is_bad)).flat[i]) for x in (start_1, num_steps_1))
        raise WindowError(
            f"window steps [{bad_start + low}, {bad_start + high + 1}) lie outside their episode: it has {bad_num} steps, "
            f"pad={window.pad!r}."
        )
    steps_T = start_1[..., None] + offsets_T
    last_1 = num_steps_1[..., None] - 1
    return np.minimum(np.maximum(steps_T, 0), last_1), (steps_T < 0) | (steps_T > last_1)


def clocked_rows(
    step_times_T: Int64Array,
    is_pad_T: BoolArray,
    stream_times_N: Int64Array,
    *,
    align: Align,
    tolerance_ns: int | None,
    on_miss: Miss = "mask",
    steps_T: Int64Array | None = None,
) -> tuple[Int64Array, BoolArray]:
    """Return the row of a clocked stream at each step, and where there is none.

    `nearest` takes the row closest in time, of two equally close ones the earlier; `previous` the last row at or
    before the step. A step whose row is farther than `tolerance_ns`, or that has no row before it under `previous`,
    is a miss: its row is clamped into the stream and its mask is True. `exact` takes a row that stands at exactly the
    step's time. Steps outside the episode take the row of the window's nearest real step (of their own time, if there
    is none), mask True, and are never misses.

    Args:
        step_times_T: Time of each step, int64 ns, (T,) or (B, T) of the same episode.
        is_pad_T: Steps outside the episode, from `stepwise_rows`.
        stream_times_N: Timestamps of the stream's rows, int64 ns, strictly rising; not checked here.
        align: Rule above.
        tolerance_ns: Largest distance, inclusive; None = no limit.
        on_miss: "error" raises at the first miss, "mask" leaves it to the mask.
        steps_T: Step numbers for the error text; without them the place in the window is named.

    Returns:
        rows_T: int64, in [0, N).
        is_pad_T: bool; where it is True and the argument `is_pad_T` is not, the step is a miss.

    Raises:
        AlignError: A miss under on_miss="error", or a stream without any row (treat it as missing).
        ConfigError: Unknown `align`, or a negative tolerance.
    """
    if align not in ("nearest", "previous", "exact"):
        raise ConfigError(
            f"align={align!r} is unknown: expected one of 'nearest', 'previous', 'exact', which give one row each."
        )
    if align == "exact":
        tolerance_ns = 0
    if tolerance_ns is not None and tolerance_ns < 0:
        raise ConfigError(f"tolerance_ns={tolerance_ns!r} is invalid: expected 0 or more, or None.")
    time_T = np.asarray(step_times_T, dtype=np.int64)
    is_pad_T = np.asarray(is_pad_T, dtype=np.bool_)
    time_N = np.asarray(stream_times_N, dtype=np.int64)
    if not len(time_N):
        raise AlignError("the stream has no row in this episode: got 0 timestamps, expected at least 1.")

    left_T = np.searchsorted(time_N, time_T, side="right").astype(np.int64) - 1  # last row at or before; -1 = none
    left_gap_T = gap_ns(time_N[np.maximum(left_T, 0)], time_T)
    rows_T = np.maximum(left_T, 0)
    if align != "previous":
        right_T = np.minimum(left_T + 1, len(time_N) - 1)
        right_gap_T = gap_ns(time_T, time_N[right_T])
        # Strictly closer, so that a tie goes to the earlier row; the row after the last one does not exist.
        takes_right_T = (left_T < 0) | ((left_T + 1 < len(time_N)) & (right_gap_T < left_gap_T))
        rows_T = np.where(takes_right_T, right_T, rows_T)
        gap_T = np.where(takes_right_T, right_gap_T, left_gap_T)
        is_miss_T = np.zeros(time_T.shape, dtype=np.bool_)
    else:
        is_miss_T = left_T < 0
        gap_T = np.where(is_miss_T, gap_ns(time_T, time_N[rows_T]), left_gap_T)
    if tolerance_ns is not None:
        is_miss_T |= gap_T > np.uint64(min(int(tolerance_ns), 2**64 - 1))
    is_miss_T &= ~is_pad_T
    if on_miss == "error" and is_miss_T.any():
        raise_miss(is_miss_T, time_T, rows_T, gap_T, time_N, align, tolerance_ns, steps_T)
    if is_pad_T.any():
        rows_T = np.take_along_axis(rows_T, nearest_real(is_pad_T), axis=-1)
    return rows_T, is_pad_T | is_miss_T


def gap_ns(earlier: Int64Array, later: Int64Array) -> np.ndarray:
    """Return later - earlier as uint64: exact for any two int64 in that order, where int64 could overflow."""
    return later.astype(np.uint64) - earlier.astype(np.uint64)


def nearest_real(is_pad_T: BoolArray) -> Int64Array:
    """Return for each place of a window the last place at or before it that is not padding, else the first after it.

    A window without any real place gives each place itself.
    """
    num_places = is_pad_T.shape[-1]
    place_T = np.arange(num_places, dtype=np.int64)
    before_T = np.maximum.accumulate(np.where(is_pad_T, -1, place_T), axis=-1)
    after_T = np.minimum.accumulate(np.where(is_pad_T, num_places, place_T)[..., ::-1], axis=-1)[..., ::-1]
    found_T = np.where(before_T >= 0, before_T, after_T)
    return np.asarray(np.where(found_T < num_places, found_T, place_T), dtype=np.int64)


def raise_miss(
    is_miss_T: BoolArray,
    time_T: Int64Array,
    rows_T: Int64Array,
    gap_T: np.ndarray,
    time_N: Int64Array,
    align: Align,
    tolerance_ns: int | None,
    steps_T: Int64Array | None,
) -> NoReturn:
    """Raise the AlignError of the first miss, with step, time, row and gap."""
    i = int(np.flatnonzero(is_miss_T)[0])
    row, time = int(rows_T.flat[i]), int(time_T.flat[i])
    name = f"step {int(np.asarray(steps_T).flat[i])}" if steps_T is not None else f"window place {i % time_T.shape[-1]}"
    limit = "no limit" if tolerance_ns is None else f"at most {tolerance_ns} ns"
    side = {"previous": "at or before it", "exact": "at exactly this time"}.get(align, "near it")
    raise AlignError(
        f"{name} at {time} ns has no row {side}: the nearest one, row {row}, stands at {int(time_N[row])} ns, "
        f"{int(gap_T.flat[i])} ns away; expected {limit}. Raise tolerance_s, or use on_miss='mask'."
    )


def default_tolerance_ns(spec: StreamSpec, request: StreamRequest) -> int | None:
    """Return the largest distance in ns between a step and its row; None = no limit.

    That is `request.tolerance_s`, or one and a half periods of the stream's nominal rate where none is given.
    """
    if request.tolerance_s is not None:
        if request.tolerance_s == float("inf"):
            return None
        return round(Fraction(request.tolerance_s) * 1_000_000_000)
    if spec.rate_hz is None:
        return None
    return round(Fraction(3 * 1_000_000_000, 2) / Fraction(spec.rate_hz))


def rows_to_zero(is_pad_T: BoolArray, stream_is_pad_T: BoolArray, pad: Pad) -> BoolArray:
    """Return which steps of a stream are delivered as zeros rather than as their clamped row.

    Misses always are. Steps outside the episode are under pad="zero"; under pad="edge" they repeat what their window's
    nearest real step delivers, zeros if that one is a miss.

    Args:
        is_pad_T: Steps outside the episode, from `stepwise_rows`.
        stream_is_pad_T: Mask of the stream, from `stepwise_rows` or `clocked_rows`.
        pad: The window's padding.
    """
    is_pad_T = np.asarray(is_pad_T, dtype=np.bool_)
    is_miss_T = np.asarray(stream_is_pad_T, dtype=np.bool_) & ~is_pad_T
    if pad == "zero":
        return is_miss_T | is_pad_T
    return np.take_along_axis(is_miss_T, nearest_real(is_pad_T), axis=-1)


def step_flags(
    rows_T: Int64Array, is_pad_T: BoolArray, num_steps_episode: int | Int64Array, terminated: int | Int8Array
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Return (is_first_T, is_last_T, is_terminal_T), as RLDS means them. All False on padded steps.

    Args:
        rows_T: Steps of the window, (T,) or (B, T), from `stepwise_rows` (or not clamped: padded ones do not count).
        is_pad_T: Steps beyond the episode's end.
        num_steps_episode: Steps of the episode, or of each window's episode (B,).
        terminated: 1 = the episode's last step is a terminal state, 0 = cut off, -1 = the data do not say; or (B,).

    Returns:
        is_first_T: The episode's step 0.
        is_last_T: The episode's last step.
        is_terminal_T: The last step of an episode that is known to have terminated.
    """
    is_real_T = ~np.asarray(is_pad_T, dtype=np.bool_)
    rows_T = np.asarray(rows_T, dtype=np.int64)
    last_1 = np.asarray(num_steps_episode, dtype=np.int64)[..., None] - 1
    is_last_T = is_real_T & (rows_T == last_1)
    return is_real_T & (rows_T == 0), is_last_T, is_last_T & (np.asarray(terminated)[..., None] == 1)
