"""The compiled loops of the gather: rows of many windows copied by address, masks and keys written beside them.

They trust their arguments: addresses, episodes and starts come from `GatherTable` and the sampler, which check them.
Compiled on first use and kept on disk; they release the GIL and allocate next to nothing.
"""

# Shapes: G rows to write, K batches, N rows of all batches, S streams, E episodes, X offsets or keys, joined

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from trajload.jit import compiled
from trajload.types import Int8Array, Int64Array, NDArray

__all__ = ["BAD", "META", "MISSING", "UNKNOWN", "UNREADY", "gather_batches"]

UNKNOWN, MISSING, BAD = 0, -1, -2
"""In place of an address: not looked at, the episode lacks the stream, only the plain path can tell what is wrong."""
UNREADY = -1
"""Of a whole call: some address or clock is not known."""
_LINE_BYTES = 64
_MAX_AHEAD_BYTES = 4096
_AHEAD = 2
"""Rows from the one that is copied to the one whose memory is asked for: it takes a third off the copy."""
META = ("row_bytes", "num_places", "first_offset", "is_run")
"""Columns of `meta_SM`; `first_offset` is the place in `offset_X`, `is_run` whether a stream's offsets are neighbours."""


if TYPE_CHECKING:

    def intrinsic(function: Any) -> Any: ...
    def carray(pointer: Any, size: int, dtype: Any) -> NDArray: ...

else:
    from numba import carray
    from numba.extending import intrinsic


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


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address, which need not exist."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], cgutils.voidptr_t)
        number = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch",
            (cgutils.voidptr_t,),
            ir.FunctionType(ir.VoidType(), (cgutils.voidptr_t, number, number, number)),
        )
        builder.call(function, (pointer, number(0), number(3), number(1)))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@compiled
def _state(row_G: Int64Array, episode_N: Int64Array, address_SE: Int64Array, clock_E3: Int64Array) -> int:
    """Return 0 if all that the rows need is known, UNREADY if something is not, BAD where a row is for the plain path."""
    found = 0
    for g in range(len(row_G)):
        episode = episode_N[row_G[g]]
        if clock_E3[episode, 0] < 0:
            found = UNREADY
        for s in range(len(address_SE)):
            address = address_SE[s, episode]
            if address == BAD:
                return BAD
            if address == UNKNOWN:
                found = UNREADY
    return found


@compiled
def _zero_rows(row_G: Int64Array, num_rows: int, target_K: Int64Array, row_bytes: int) -> None:
    """Zero rows of one key, neighbours at once."""
    g = 0
    while g < len(row_G):
        k = row_G[g] // num_rows
        end = min(g + (k + 1) * num_rows - row_G[g], len(row_G))
        stop = g + 1
        while stop < end and row_G[stop] == row_G[stop - 1] + 1:
            stop += 1
        _fill(target_K[k] + (row_G[g] - k * num_rows) * row_bytes, (stop - g) * row_bytes, 0)
        g = stop


@compiled
def _copy_rows(
    row_G: Int64Array,
    num_rows: int,
    episode_N: Int64Array,
    start_N: Int64Array,
    num_steps_E: Int64Array,
    address_E: Int64Array,
    row_bytes: int,
    num_places: int,
    offset_T: Int64Array,
    is_run: bool,
    is_zero_pad: bool,
    target_K3: Int64Array,
) -> None:
    """Write rows of one stream: values, `is_pad` and `is_missing`, at the addresses of each batch."""
    window_bytes = row_bytes * num_places
    _zero_rows(row_G, num_rows, target_K3[:, 1], num_places)
    _zero_rows(row_G, num_rows, target_K3[:, 2], 1)
    k = 0
    for g in range(len(row_G)):
        n = row_G[g]
        while n >= (k + 1) * num_rows:
            k += 1
        b = n - k * num_rows
        episode = episode_N[n]
        source = address_E[episode]
        values, mask = target_K3[k, 0] + b * window_bytes, target_K3[k, 1] + b * num_places
        if source == MISSING:
            _fill(target_K3[k, 2] + b, 1, 1)
            _fill(values, window_bytes, 0)
            _fill(mask, num_places, 1)
            continue
        last = num_steps_E[episode] - 1
        if is_run:
            if g + _AHEAD < len(row_G):
                after = row_G[g + _AHEAD]
                first_byte = address_E[episode_N[after]] + (start_N[after] + offset_T[0]) * row_bytes
                for i in range(0, min(window_bytes, _MAX_AHEAD_BYTES), _LINE_BYTES):
                    _prefetch(first_byte + i)
            low = start_N[n] + offset_T[0]
            begin = min(max(-low, 0), num_places)
            end = min(max(last + 1 - low, begin), num_places)
            _copy(values + begin * row_bytes, source + (low + begin) * row_bytes, (end - begin) * row_bytes)
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
            step = start_N[n] + offset_T[t]
            row = min(max(step, 0), last)
            if row != step:
                _fill(mask + t, 1, 1)
            if row != step and is_zero_pad:
                _fill(values + t * row_bytes, row_bytes, 0)
            else:
                _copy(values + t * row_bytes, source + row * row_bytes, row_bytes)


@compiled
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
    if low >= 0 and low + dilation * (len(times_T) - 1) <= last:  # the whole window, as most are: no branches
        for t in range(len(times_T)):
            times_T[t] = time
            part += rest
            is_more = part >= unit
            part -= unit * is_more
            time += gain + is_more
        return
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


@compiled
def _write_keys(
    row_G: Int64Array,
    num_rows: int,
    episode_N: Int64Array,
    start_N: Int64Array,
    window_id_N: Int64Array,
    epoch_N: Int64Array,
    row_is_pad_N: NDArray,
    num_steps_E: Int64Array,
    terminated_E: Int8Array,
    clock_E3: Int64Array,
    low: int,
    dilation: int,
    num_steps: int,
    target_K9: Int64Array,
) -> int:
    """Write what does not come from streams, and return how many rows have no uniform clock: their times are left out."""
    for i in range(3):
        _zero_rows(row_G, num_rows, target_K9[:, i], num_steps)
    num_irregular, k = 0, -1
    for g in range(len(row_G)):
        n = row_G[g]
        if k < 0 or n >= (k + 1) * num_rows:
            k = n // num_rows
            target_K = target_K9[k]
            step_index = carray(_pointer(target_K[3]), num_rows * num_steps, np.int64)
            times = carray(_pointer(target_K[4]), num_rows * num_steps, np.int64)
            episodes = carray(_pointer(target_K[5]), num_rows, np.int64)
            window_ids = carray(_pointer(target_K[6]), num_rows, np.int64)
            epochs = carray(_pointer(target_K[7]), num_rows, np.int64)
        b = n - k * num_rows
        episode = episode_N[n]
        first, last = start_N[n] + low, num_steps_E[episode] - 1
        place = b * num_steps
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
        window_ids[b] = window_id_N[n]
        epochs[b] = epoch_N[n]
        if target_K[8] != 0:
            _fill(target_K[8] + b, 1, row_is_pad_N[n])
    return num_irregular


@compiled
def gather_batches(
    row_G: Int64Array,
    num_rows: int,
    episode_N: Int64Array,
    start_N: Int64Array,
    window_id_N: Int64Array,
    epoch_N: Int64Array,
    row_is_pad_N: NDArray,
    num_steps_E: Int64Array,
    terminated_E: Int8Array,
    address_SE: Int64Array,
    clock_E3: Int64Array,
    meta_SM: Int64Array,
    offset_X: Int64Array,
    window_4: Int64Array,
    place_S3: Int64Array,
    place_9: Int64Array,
    address_KX: Int64Array,
) -> int:
    """Write rows of one source in several batches, all they consist of, if all that it takes is known.

    Args:
        row_G: Rows to write, rising; row `b` of batch `k` is `k * num_rows + b`.
        num_rows: B of each batch.
        episode_N: Of each row of all batches; so are the following.
        address_SE: Of row 0 of each stream, or UNKNOWN, MISSING, BAD.
        clock_E3: num, den and start_ns of each episode's clock; num 0 = not uniform, -1 = unknown.
        meta_SM: See `META`.
        offset_X: Steps from the anchor, of all streams, joined.
        window_4: First offset, dilation and steps of the window, and whether padding is zeros.
        place_S3: Of values, `is_pad` and `is_missing` of each stream: column of `address_KX`.
        place_9: Columns of is_first, is_last, is_terminal, step_index, timestamp_ns, episode_index, window_id, epoch and
            row_is_pad; the last may be -1, where batches have no such key.
        address_KX: Where the memory of each key of each batch begins.

    Returns:
        How many rows have no uniform clock: their times are left out. Or UNREADY or BAD, and nothing is written.
    """
    state = _state(row_G, episode_N, address_SE, clock_E3)
    if state != 0:
        return state
    num_batches = len(address_KX)
    target_K3 = np.empty((num_batches, 3), np.int64)
    for s in range(len(meta_SM)):
        row_bytes, num_places, first = meta_SM[s, 0], meta_SM[s, 1], meta_SM[s, 2]
        for k in range(num_batches):
            for i in range(3):
                target_K3[k, i] = address_KX[k, place_S3[s, i]]
        offset_T = offset_X[first : first + num_places]
        is_run, is_zero_pad = meta_SM[s, 3] != 0, window_4[3] != 0
        _copy_rows(
            row_G, num_rows, episode_N, start_N, num_steps_E, address_SE[s],
            row_bytes, num_places, offset_T, is_run, is_zero_pad, target_K3,
        )  # fmt: skip
    target_K9 = np.empty((num_batches, 9), np.int64)
    for k in range(num_batches):
        for i in range(9):
            target_K9[k, i] = address_KX[k, place_9[i]] if place_9[i] >= 0 else 0
    return _write_keys(
        row_G, num_rows, episode_N, start_N, window_id_N, epoch_N, row_is_pad_N, num_steps_E, terminated_E, clock_E3,
        window_4[0], window_4[1], window_4[2], target_K9,
    )  # fmt: skip
