"""The compiled loops of the gather: rows of many windows copied by address, masks and keys written beside them.

They trust their arguments: addresses, episodes and starts come from `GatherTable` and the sampler, which check them.
Compiled on first use and kept on disk; they release the GIL and allocate nothing.
"""

# Shapes: G rows to write, B rows of the batch, S streams, E episodes, X offsets of all streams, joined

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numba
import numpy as np
from numba.core import cgutils, types

from trajload.jit import loaded_quickly
from trajload.types import Int8Array, Int64Array, NDArray

__all__ = ["BAD", "META", "MISSING", "READY", "UNKNOWN", "gather_streams", "readiness", "write_keys"]

UNKNOWN, MISSING, BAD = 0, -1, -2
"""In place of an address: not looked at, the episode lacks the stream, only the plain path can tell what is wrong."""
READY = 0
META = ("row_bytes", "num_places", "first_offset", "is_run")
"""Columns of `meta_SM`; `first_offset` is the place in `offset_X`, `is_run` whether a stream's offsets are neighbours."""

_F = TypeVar("_F")

if TYPE_CHECKING:

    def _compiled(function: _F) -> _F: ...
    def intrinsic(function: Any) -> Any: ...
    def carray(pointer: Any, size: int, dtype: Any) -> NDArray: ...

else:
    from numba import carray
    from numba.extending import intrinsic

    def _compiled(function):
        options = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
        return loaded_quickly(numba.njit(**options)(function))


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """A number as a pointer, as `carray` takes it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def _copy(typing_context: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """memcpy between addresses."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, source = (builder.inttoptr(arg, cgutils.voidptr_t) for arg in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _fill(typing_context: Any, target: Any, num_bytes: Any, value: Any) -> Any:
    """memset at an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.trunc(args[2], cgutils.int8_t)
        cgutils.memset(builder, builder.inttoptr(args[0], cgutils.voidptr_t), args[1], value)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_compiled
def readiness(row_G: Int64Array, episode_B: Int64Array, address_SE: Int64Array, clock_E3: Int64Array) -> int:
    """Return READY if all that the rows need is known, else UNKNOWN + 1, or BAD where a row is for the plain path."""
    found = 0
    for g in range(len(row_G)):
        episode = episode_B[row_G[g]]
        if clock_E3[episode, 0] < 0:
            found = 1
        for s in range(len(address_SE)):
            address = address_SE[s, episode]
            if address == BAD:
                return BAD
            if address == UNKNOWN:
                found = 1
    return found


@_compiled
def gather_streams(
    row_G: Int64Array,
    episode_B: Int64Array,
    start_B: Int64Array,
    num_steps_E: Int64Array,
    address_SE: Int64Array,
    meta_SM: Int64Array,
    offset_X: Int64Array,
    target_S3: Int64Array,
    is_zero_pad: bool,
) -> None:
    """Write rows of streams: values, `is_pad` and `is_missing`, at the addresses of `target_S3`."""
    for s in range(len(meta_SM)):
        row_bytes, num_places, first = meta_SM[s, 0], meta_SM[s, 1], meta_SM[s, 2]
        is_run = meta_SM[s, 3] != 0
        window_bytes = row_bytes * num_places
        for g in range(len(row_G)):
            b = row_G[g]
            episode = episode_B[b]
            source = address_SE[s, episode]
            values, mask = target_S3[s, 0] + b * window_bytes, target_S3[s, 1] + b * num_places
            _fill(target_S3[s, 2] + b, 1, source == MISSING)
            if source == MISSING:
                _fill(values, window_bytes, 0)
                _fill(mask, num_places, 1)
                continue
            last = num_steps_E[episode] - 1
            if is_run:
                low = start_B[b] + offset_X[first]
                begin = min(max(-low, 0), num_places)
                end = min(max(last + 1 - low, begin), num_places)
                _copy(values + begin * row_bytes, source + (low + begin) * row_bytes, (end - begin) * row_bytes)
                _fill(mask + begin, end - begin, 0)
                if begin > 0:
                    _fill(mask, begin, 1)
                if end < num_places:
                    _fill(mask + end, num_places - end, 1)
                if is_zero_pad:
                    _fill(values, begin * row_bytes, 0)
                    _fill(values + end * row_bytes, (num_places - end) * row_bytes, 0)
                else:
                    for t in range(begin):
                        _copy(values + t * row_bytes, source, row_bytes)
                    for t in range(end, num_places):
                        _copy(values + t * row_bytes, source + last * row_bytes, row_bytes)
                continue
            for t in range(num_places):
                step = start_B[b] + offset_X[first + t]
                row = min(max(step, 0), last)
                _fill(mask + t, 1, row != step)
                if row != step and is_zero_pad:
                    _fill(values + t * row_bytes, row_bytes, 0)
                else:
                    _copy(values + t * row_bytes, source + row * row_bytes, row_bytes)


@_compiled
def _write_times(times_T: Int64Array, low: int, dilation: int, last: int, num: int, den: int, begin_ns: int) -> None:
    """Write `begin + round(step * den * 1e9 / num)`, rounded half up, of each step, clamped into the episode.

    Exact as `UniformClock.times_ns` is: value and remainder are carried from step to step, so that no step but the
    first needs a division.
    """
    unit = 2 * num
    # the quotient and remainder of (2 * ticks * 1e9 + num) / (2 * num) for one step of the window
    gain, rest = divmod(dilation * den, num)
    gain = gain * 1_000_000_000 + (rest * 2_000_000_000) // unit
    rest = (rest * 2_000_000_000) % unit
    step = min(max(low, 0), last)
    whole, part = divmod(step * den, num)
    part = part * 2_000_000_000 + num
    time = begin_ns + whole * 1_000_000_000 + part // unit
    part = part % unit
    for t in range(len(times_T)):
        due = min(max(low + dilation * t, 0), last)
        if due == step + dilation:
            time += gain
            part += rest
            if part >= unit:
                part -= unit
                time += 1
        elif due != step:  # the clamped ends, where a step is shorter
            whole, part = divmod(due * den, num)
            part = part * 2_000_000_000 + num
            time = begin_ns + whole * 1_000_000_000 + part // unit
            part = part % unit
        step = due
        times_T[t] = time


@_compiled
def write_keys(
    row_G: Int64Array,
    episode_B: Int64Array,
    start_B: Int64Array,
    window_id_B: Int64Array,
    epoch_B: Int64Array,
    row_is_pad_B: NDArray,
    num_steps_E: Int64Array,
    terminated_E: Int8Array,
    clock_E3: Int64Array,
    low: int,
    dilation: int,
    num_steps: int,
    target_K: Int64Array,
) -> int:
    """Write what does not come from streams, and return how many rows have no uniform clock: their times are left out.

    `target_K` holds the addresses of is_first, is_last, is_terminal, step_index, timestamp_ns, episode_index, window_id,
    epoch and row_is_pad; 0 where the batch has no such key.
    """
    num_rows = len(episode_B)
    step_index = carray(_pointer(target_K[3]), num_rows * num_steps, np.int64)
    times = carray(_pointer(target_K[4]), num_rows * num_steps, np.int64)
    episodes = carray(_pointer(target_K[5]), num_rows, np.int64)
    window_ids = carray(_pointer(target_K[6]), num_rows, np.int64)
    epochs = carray(_pointer(target_K[7]), num_rows, np.int64)
    num_irregular = 0
    for g in range(len(row_G)):
        b = row_G[g]
        episode = episode_B[b]
        first, last = start_B[b] + low, num_steps_E[episode] - 1
        place = b * num_steps
        for k in range(3):
            _fill(target_K[k] + place, num_steps, 0)
        if first <= 0 and (-first) % dilation == 0 and (-first) // dilation < num_steps:
            _fill(target_K[0] + place + (-first) // dilation, 1, 1)
        if first <= last and (last - first) % dilation == 0 and (last - first) // dilation < num_steps:
            _fill(target_K[1] + place + (last - first) // dilation, 1, 1)
            _fill(target_K[2] + place + (last - first) // dilation, 1, terminated_E[episode] == 1)
        for t in range(num_steps):
            step_index[place + t] = first + dilation * t
        if clock_E3[episode, 0] > 0:
            _write_times(
                times[place : place + num_steps],
                first,
                dilation,
                last,
                clock_E3[episode, 0],
                clock_E3[episode, 1],
                clock_E3[episode, 2],
            )
        else:
            num_irregular += 1
        episodes[b] = episode
        window_ids[b] = window_id_B[b]
        epochs[b] = epoch_B[b]
        if target_K[8] != 0:
            _fill(target_K[8] + b, 1, row_is_pad_B[b])
    return num_irregular
