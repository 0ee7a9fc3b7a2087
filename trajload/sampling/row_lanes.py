"""Lanes that begin blocks evenly and keep to their row: how `interleaved/2` reads its sequence of slots.

The sequence is cut into one piece for each row of the batch, and each piece into the K lanes of that row, so that a slot
cut between two lanes is nearly always read by one row, hence by one rank. A row reads its piece in a circle, from
a place chosen so that in every batch about the same number of rows begin a slot.
Source: docs/decisions/0074-interleaved-2.md
"""

# Shapes: B windows or lanes

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from trajload.sampling.even_cuts import EvenCuts
from trajload.types import Int64Array

__all__ = ["MIN_SLOTS_TURNED", "LanePlaces", "RowLanes", "spread_multiplier"]

MIN_SLOTS_TURNED = 5
"""Shorter circles are read from their start: their rows could not turn at two distances."""

_MAX_TURNS = 4
"""Rows turn in the last 8 slots that they read at most."""

_SEARCHED = 32
"""Of 63 neighbours one is coprime to any number below 2**42 (Jacobsthal's function of 11 primes is 58)."""


@dataclass(frozen=True, slots=True, eq=False)
class LanePlaces:
    """Where in the sequence some offsets read."""

    lane_B: Int64Array
    index_B: Int64Array
    start_B: Int64Array
    """The lane reads [start_B, stop_B) of the sequence without a jump, this window among it."""
    stop_B: Int64Array


def spread_multiplier(num: int) -> int:
    """Return m coprime to `num`, such that neighbouring r have r * m % num far apart, evenly for any n of them.

    That is so where the continued fraction of num / m has small terms; the golden ratio has the smallest, so the best
    of the numbers close to 0.618 `num` is taken, the closest of equals.
    """
    target = max(1, round(num * 0.6180339887498949))
    near = [m for d in range(_SEARCHED) for m in (target + d, target - d) if 1 <= m <= num and gcd(m, num) == 1]
    return min(near, key=lambda m: _largest_term(num, m))


def _largest_term(a: int, b: int) -> int:
    largest = 0
    while b:
        largest, a, b = max(largest, a // b), b, a % b
    return largest


class RowLanes:
    """`num_windows` of a sequence in V = G * K lanes. Immutable; holds a few integers.

    Offset o is column `o // V` of lane `o % V`; lane `k * G + r` is lane k of row r. Lanes with a number below `N % V` are
    one longer, since the last column may be incomplete. In its piece of the sequence a row has its longer lanes first,
    then the shorter ones, and last the one lane k whose length differs between rows: so lane k starts at the same distance
    from the start of the piece in every row, and slots begin as evenly in it as rows are spread.
    """

    def __init__(self, num_windows: int, global_batch_size: int, lanes_per_row: int, slot_windows: int) -> None:
        """Fix the layout.

        Args:
            num_windows: N, length of the sequence.
            global_batch_size: G, rows.
            lanes_per_row: K.
            slot_windows: W; slots begin at multiples of it.
        """
        self.num_windows = num_windows
        self.num_rows = global_batch_size
        self.lanes_per_row = lanes_per_row
        self.num_lanes = global_batch_size * lanes_per_row
        self.slot_windows = slot_windows
        self._length, num_longer = divmod(num_windows, self.num_lanes)
        self._differing = num_longer // global_batch_size
        self._rows = EvenCuts(num_windows, global_batch_size)
        # With fewer rows than the windows of a slot, rows alone cannot be spread over all phases: each lane then reads
        # in a circle of its own, at the cost of one more cut slot per lane.
        self.has_circle_per_lane = global_batch_size < slot_windows
        self._num_turns = max(1, min(_MAX_TURNS, (self._rows.length // slot_windows - 1) // 2))
        self._row_multiplier = spread_multiplier(global_batch_size)
        self._lane_multiplier = spread_multiplier(lanes_per_row)

    def places(self, offset_B: Int64Array) -> LanePlaces:
        """Return where offsets in [0, num_windows) read."""
        column_B, lane_B = np.divmod(offset_B, self.num_lanes)
        k_B, row_B = np.divmod(lane_B, self.num_rows)
        a = self._differing
        turn_B = np.where(k_B < a, k_B, np.where(k_B == a, self.lanes_per_row - 1, k_B - 1))
        circle_B, size_B, shift_B, first_B = self._circle(row_B, turn_B)
        first_B += column_B  # where in the circle, counted from where reading begins
        lane_first_B = first_B - column_B
        wrap_B = size_B - shift_B
        has_wrapped_B = first_B >= wrap_B
        jump_B = circle_B + shift_B - np.where(has_wrapped_B, size_B, 0)
        lane_stop_B = lane_first_B + self._lane_size(row_B, turn_B)
        return LanePlaces(
            lane_B=lane_B,
            index_B=jump_B + first_B,
            start_B=jump_B + np.where(has_wrapped_B, np.maximum(lane_first_B, wrap_B), lane_first_B),
            stop_B=jump_B + np.where(has_wrapped_B, lane_stop_B, np.minimum(lane_stop_B, wrap_B)),
        )

    def offset(self, index_B: Int64Array) -> Int64Array:
        """Return the offset at which each place of the sequence is read; the inverse of `places`."""
        row_B, rank_B = self._rows.find(index_B)
        a, length = self._differing, self._length
        if self.has_circle_per_lane:
            turn_B = self._turn(rank_B)
            circle_B, size_B, shift_B, _ = self._circle(row_B, turn_B)
            column_B = (index_B - circle_B - shift_B) % size_B
        else:
            circle_B, size_B, shift_B, _ = self._circle(row_B, np.zeros_like(row_B))
            read_B = (index_B - circle_B - shift_B) % size_B
            turn_B = self._turn(read_B)
            column_B = read_B - (turn_B * length + np.minimum(turn_B, a))
        k_B = np.where(turn_B < a, turn_B, np.where(turn_B == self.lanes_per_row - 1, a, turn_B + 1))
        return np.asarray(column_B * self.num_lanes + k_B * self.num_rows + row_B, dtype=np.int64)

    def edge_offsets(self) -> Int64Array:
        """Return the offsets of the first and the last window of every stretch that a lane reads without a jump."""
        lane_V = np.arange(min(self.num_lanes, self.num_windows), dtype=np.int64)
        whole = self.places(lane_V)
        ends_V = self.places(self._last_offset(lane_V))
        read_V = np.concatenate([whole.start_B, whole.stop_B - 1, ends_V.start_B, ends_V.stop_B - 1])
        return self.offset(np.unique(read_V))

    def _last_offset(self, lane_V: Int64Array) -> Int64Array:
        return lane_V + (self.num_windows - 1 - lane_V) // self.num_lanes * self.num_lanes

    def _turn(self, rank_B: Int64Array) -> Int64Array:
        """Return which of a row's lanes, in the order of its piece, holds the window at `rank_B` of it."""
        a, length = self._differing, self._length
        in_longer = a * (length + 1)
        last = self.lanes_per_row - 1
        # The last lane may have a window more than those before it; with length 0 it is the only one after the longer.
        later_B = np.minimum(a + (rank_B - in_longer) // length, last) if length else last
        return np.where(rank_B < in_longer, rank_B // (length + 1), later_B)

    def _lane_size(self, row_B: Int64Array, turn_B: Int64Array) -> Int64Array:
        is_last_B = turn_B == self.lanes_per_row - 1
        return self._length + np.where(is_last_B, row_B < self._rows.num_longer, turn_B < self._differing)

    def _circle(self, row_B: Int64Array, turn_B: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Return (start_B, size_B, shift_B, first_B): a circle, where reading begins in it, and how far the lane is from there."""
        piece_B = self._rows.start(row_B)
        lane_B = turn_B * self._length + np.minimum(turn_B, self._differing)
        if self.has_circle_per_lane:
            start_B, size_B, first_B = piece_B + lane_B, self._lane_size(row_B, turn_B), np.zeros_like(lane_B)
            spread_B = row_B * self._row_multiplier % self.num_rows * self.lanes_per_row
            spread_B += turn_B * self._lane_multiplier % self.lanes_per_row
            phase_B = spread_B * self.slot_windows // self.num_lanes
        else:
            start_B, size_B, first_B = piece_B, self._rows.size(row_B), lane_B
            phase_B = row_B * self._row_multiplier % self.num_rows * self.slot_windows // self.num_rows
        shift_B = (phase_B - start_B) % self.slot_windows
        if not self.has_circle_per_lane:
            # A row ends with the start of its piece, while the row before it, near its own end, reads the other part of the
            # slot cut between them. Neighbours turn at least a slot apart, so that no batch holds both parts; several
            # distances keep rows from turning all at once where the phases of their pieces are in step.
            shift_B += row_B % self._num_turns * (2 * self.slot_windows)
        # A circle of so few slots is not worth a further cut: nearly all of it is start and end of the epoch.
        return start_B, size_B, np.where(size_B >= MIN_SLOTS_TURNED * self.slot_windows, shift_B, 0), first_B
