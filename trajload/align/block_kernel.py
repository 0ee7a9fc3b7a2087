"""The rows that the windows of a block take of a stream that goes by steps, worked out in one compiled call.

In NumPy the same is a dozen calls on arrays of a few hundred numbers, several of which let go of Python's lock.
"""

# Shapes: W windows of a block, T places of one stream, U rows

from __future__ import annotations

import numpy as np

from trajload.jit import compiled_short
from trajload.types import BoolArray, Int64Array

__all__ = ["MAX_SPAN", "block_rows"]

MAX_SPAN = 1 << 16
"""Rows from the first to the last that are taken, at most."""


@compiled_short
def block_rows(
    anchor_W: Int64Array, offset_T: Int64Array, num_steps: int
) -> tuple[Int64Array, Int64Array, BoolArray, BoolArray]:
    """Return the rows, each once, and where among them each place of each window stands.

    Args:
        anchor_W: Steps inside the episode, [0, num_steps).
        offset_T: Of each place from the anchor, in steps; T is at least 1.
        num_steps: Of the episode.

    Returns:
        rows_U: Rising; empty where they span more than `MAX_SPAN`, and then nothing else counts.
        place_WT: Index into `rows_U`. Places outside the episode take its first or its last step.
        is_outside_WT: Which do.
        has_outside_W: Whether any place of the window does.
    """
    num_windows, num_places = len(anchor_W), len(offset_T)
    place_WT = np.empty((num_windows, num_places), np.int64)
    is_outside_WT = np.zeros((num_windows, num_places), np.bool_)
    has_outside_W = np.zeros(num_windows, np.bool_)
    first, last = num_steps, -1
    for w in range(num_windows):
        for t in range(num_places):
            step = anchor_W[w] + offset_T[t]
            if step < 0 or step >= num_steps:
                is_outside_WT[w, t] = True
                has_outside_W[w] = True
                step = 0 if step < 0 else num_steps - 1
            place_WT[w, t] = step
            first, last = min(first, step), max(last, step)
    span = last - first + 1
    if span < 1 or span > MAX_SPAN:
        return np.empty(0, np.int64), place_WT, is_outside_WT, has_outside_W
    place_N = np.zeros(span, np.int64)
    for w in range(num_windows):
        for t in range(num_places):
            place_N[place_WT[w, t] - first] = 1
    num_rows = 0
    for n in range(span):
        is_taken = place_N[n]
        place_N[n] = num_rows
        num_rows += is_taken
    rows_U = np.empty(num_rows, np.int64)
    for w in range(num_windows):
        for t in range(num_places):
            step = place_WT[w, t]
            place = place_N[step - first]
            place_WT[w, t] = place
            rows_U[place] = step
    return rows_U, place_WT, is_outside_WT, has_outside_W
