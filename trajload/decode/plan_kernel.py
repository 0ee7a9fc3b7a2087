"""The compiled plan of a video window: from rows and packet table to ranges, groups, packet runs and wanted frames.

In NumPy the same takes some sixty calls on arrays of twenty numbers, each of which costs more than its work.
"""

# Shapes: T rows, W wanted frames, P packets, F frames, S segments, G groups of pictures, R ranges

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from trajload.jit import compiled, compiled_short
from trajload.types import NDArray

__all__ = ["BAD_FRAME", "BAD_ROW", "BAD_TABLE", "IS_DISORDERED", "OK", "plan_window"]

OK, BAD_ROW, BAD_FRAME, BAD_TABLE, IS_DISORDERED = 0, 1, 2, 3, 4

if TYPE_CHECKING:

    def _compiled_once(function: Any) -> Any: ...

else:
    # Tables of different sources are read-only or not, aligned or not: one signature takes them all.
    _numbers = types.Array(types.int64, 1, "C", readonly=True, aligned=False)
    _flags = types.Array(types.boolean, 1, "C", readonly=True, aligned=False)
    _matrix = types.Array(types.int64, 2, "C")
    _result = types.Tuple((types.int64, *[_matrix] * 5))
    _signature = _result(*[_numbers] * 5, _flags, *[_numbers] * 2, *[types.int64] * 3, types.boolean)

    def _compiled_once(function):
        made = compiled_short(function)
        made.compile(_signature)
        made.disable_compile()
        return made


@compiled
def _order(keys: NDArray) -> NDArray:
    """Return the stable order of `keys`, by insertion: they are in order, or nearly."""
    order = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        j = i
        while j > 0 and keys[order[j - 1]] > keys[i]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i
    return order


@compiled
def _total(runs: NDArray) -> int:
    """Return how many packets half-open runs hold."""
    total = 0
    for s in range(len(runs)):
        total += runs[s, 1] - runs[s, 0]
    return total


@compiled
def _runs(begin_W: NDArray, last_W: NDArray) -> NDArray:
    """Return (S, 2) half-open packet runs that cover [begin, last] of every frame; those that touch are joined."""
    out = np.empty((len(begin_W), 2), np.int64)
    count = 0
    order = _order(begin_W)
    for w in range(len(order)):
        k = order[w]
        if count and begin_W[k] <= out[count - 1, 1]:
            out[count - 1, 1] = max(out[count - 1, 1], last_W[k] + 1)
        else:
            out[count, 0], out[count, 1] = begin_W[k], last_W[k] + 1
            count += 1
    return out[:count]


@compiled
def _depth(pts_P: NDArray, start: int, stop: int) -> int:
    """Return how many frames a decoder must hold back to give these packets' frames in display order."""
    # the greatest number of frames that precede one in decode order and follow it in display order
    depth = 0
    order = _order(pts_P[start:stop])
    for rank in range(len(order)):
        depth = max(depth, order[rank] - rank)
    return depth


@compiled
def _groups(runs_S2: NDArray, is_key_P: NDArray) -> NDArray:
    """Return (G, 3): first packet, last + 1 and number of each whole group of pictures that the runs touch.

    A run that begins inside a group, which only a damaged table asks for, gives a piece that fails its checksum.
    """
    out = np.empty((_total(runs_S2), 3), np.int64)
    count, number, counted, done = 0, 0, 0, 0
    for s in range(len(runs_S2)):
        first, stop = max(runs_S2[s, 0], done), runs_S2[s, 1]
        while counted < first:
            number += is_key_P[counted]
            counted += 1
        group = number
        while first < stop:
            end = first + 1
            while end < len(is_key_P) and not is_key_P[end]:
                end += 1
            out[count, 0], out[count, 1], out[count, 2] = first, end, group
            count += 1
            group += 1
            first = done = end
    return out[:count]


@compiled
def _ranges(groups_G3: NDArray, offset_P: NDArray, size_P: NDArray, max_gap: int) -> NDArray:
    """Return (R, 2): first byte and last + 1 of the ranges that cover all packets; see `plan.merge_ranges`."""
    count = _total(groups_G3)
    begin, end = np.empty(count, np.int64), np.empty(count, np.int64)
    k = 0
    for g in range(len(groups_G3)):
        for i in range(groups_G3[g, 0], groups_G3[g, 1]):
            begin[k], end[k] = offset_P[i], offset_P[i] + size_P[i]
            k += 1
    out = np.empty((count, 2), np.int64)
    found = 0
    order = _order(begin)
    for i in range(count):
        k = order[i]
        if found and begin[k] - out[found - 1, 1] <= max_gap:
            out[found - 1, 1] = max(out[found - 1, 1], end[k])
        else:
            out[found, 0], out[found, 1] = begin[k], end[k]
            found += 1
    return out[:found]


@compiled
def _group_bytes(groups_G3: NDArray, offset_P: NDArray, size_P: NDArray) -> NDArray:
    """Return (G, 5): `groups_G3`, and first byte and last + 1 of each, or -1 and -1 if other bytes stand in between."""
    out = np.empty((len(groups_G3), 5), np.int64)
    for g in range(len(groups_G3)):
        first, stop = groups_G3[g, 0], groups_G3[g, 1]
        out[g, 0], out[g, 1], out[g, 2] = first, stop, groups_G3[g, 2]
        out[g, 3], out[g, 4] = offset_P[first], offset_P[stop - 1] + size_P[stop - 1]
        for i in range(first + 1, stop):
            if offset_P[i] != offset_P[i - 1] + size_P[i - 1]:
                out[g, 3] = out[g, 4] = -1
    return out


@_compiled_once
def plan_window(
    rows_T: NDArray,
    offset_P: NDArray,
    size_P: NDArray,
    pts_P: NDArray,
    dts_P: NDArray,
    is_key_P: NDArray,
    packet_of_frame_F: NDArray,
    seek_of_frame_F: NDArray,
    first_frame: int,
    num_rows: int,
    max_gap: int,
    is_reordered: bool,
) -> tuple[int, NDArray, NDArray, NDArray, NDArray, NDArray]:
    """Return a status and, where it is OK, what to read, verify, feed and take out for a window of a video.

    Args:
        rows_T: Rows of the track that never fall; others are IS_DISORDERED.
        offset_P: And so on: the packet table, `VideoIndex`.
        first_frame: Of the track.
        num_rows: Of the track; rows beyond are a BAD_ROW.
        max_gap: Ranges no further apart than this are one.
        is_reordered: Whether to work out how many frames the decoder holds back.

    Returns:
        status: BAD_FRAME for a row whose frame the video lacks, BAD_TABLE for a table that points outside itself.
        ranges_R2: First byte and last + 1, rising.
        groups_G5: First packet, last + 1, number, first byte and last + 1; see `_group_bytes`.
        segments_S3: First and last + 1 of `packets_P4`, and reorder depth, of each run that starts on a keyframe.
        packets_P4: Offset, size, pts and dts of the packets to feed.
        wanted_W3: pts, number and first row of each frame, by rising pts.
    """
    none = np.empty((0, 0), np.int64)
    num_packets = len(is_key_P)
    is_whole = len(offset_P) == len(size_P) == len(pts_P) == len(dts_P) == num_packets
    if not is_whole or len(packet_of_frame_F) != len(seek_of_frame_F):
        return BAD_TABLE, none, none, none, none, none
    is_disordered = False
    for t in range(len(rows_T)):
        if rows_T[t] < 0 or rows_T[t] >= num_rows:
            return BAD_ROW, none, none, none, none, none
        is_disordered |= t > 0 and rows_T[t] < rows_T[t - 1]
    if is_disordered:
        return IS_DISORDERED, none, none, none, none, none
    begin_W, last_W = np.empty(len(rows_T), np.int64), np.empty(len(rows_T), np.int64)
    found_W3 = np.empty((len(rows_T), 3), np.int64)
    count = 0
    for t in range(len(rows_T)):
        if t > 0 and rows_T[t] == rows_T[t - 1]:
            continue
        frame = rows_T[t] + first_frame
        if frame < 0 or frame >= len(packet_of_frame_F):
            return BAD_FRAME, none, none, none, none, none
        begin, last = seek_of_frame_F[frame], packet_of_frame_F[frame]
        if begin < 0 or last < begin or last >= num_packets:
            return BAD_TABLE, none, none, none, none, none
        begin_W[count], last_W[count] = begin, last
        found_W3[count, 0], found_W3[count, 1], found_W3[count, 2] = pts_P[last], frame, t
        count += 1
    runs = _runs(begin_W[:count], last_W[:count])
    groups_G5 = _group_bytes(_groups(runs, is_key_P), offset_P, size_P)
    ranges_R2 = _ranges(groups_G5, offset_P, size_P, max_gap)
    segments_S3 = np.zeros((len(runs), 3), np.int64)
    packets_P4 = np.empty((_total(runs), 4), np.int64)
    k = 0
    for s in range(len(runs)):
        segments_S3[s, 0] = k
        for i in range(runs[s, 0], runs[s, 1]):
            packets_P4[k, 0], packets_P4[k, 1] = offset_P[i], size_P[i]
            packets_P4[k, 2], packets_P4[k, 3] = pts_P[i], dts_P[i]
            k += 1
        segments_S3[s, 1] = k
        if is_reordered:
            segments_S3[s, 2] = _depth(pts_P, runs[s, 0], runs[s, 1])
    wanted_W3 = np.empty((count, 3), np.int64)
    order = _order(found_W3[:count, 0])
    for w in range(count):
        for column in range(3):
            wanted_W3[w, column] = found_W3[order[w], column]
    return OK, ranges_R2, groups_G5, segments_S3, packets_P4, wanted_W3
