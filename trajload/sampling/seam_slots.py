"""What the whole slots of an epoch of `interleaved/3` hold: whole blocks, and runs of short pieces.

A seam block gives some windows before the end of the epoch and the others after it. What it does not give in an epoch
at the seam, it gives inside of that epoch: a piece, which is put, like a short block, into a sequence of short pieces
that is cut into slots. Each row has its own part of that sequence, so that a block stays on its row.
Source: docs/decisions/0094-interleaved-3.md
"""

# Shapes: B windows or slots, V lanes, G rows, K lanes of a row, T strata, X pieces

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trajload.sampling.block_kinds import BlockKinds
from trajload.sampling.block_sums import GOLDEN
from trajload.sampling.deal import DealtOrder
from trajload.sampling.endless_lanes import LaneEpoch
from trajload.sampling.even_cuts import EvenCuts
from trajload.sampling.permute import KeyedPermutation, mix64
from trajload.types import BoolArray, Int64Array

__all__ = ["SeamBlocks", "SeamSlots", "SlotWindows"]

_CHUNK = 2**16


class SeamBlocks:
    """The whole blocks that lie across the end of one epoch, one a lane, by their numbers among whole blocks.

    Those of one epoch have even numbers, those of the next one odd ones, so that none has to be at both ends of an epoch.
    """

    def __init__(self, num_whole: int, num_lanes: int, epoch: int, keys: tuple[int, ...]) -> None:
        half = epoch % 2
        drawn = KeyedPermutation((num_whole + 1 - half) // 2, keys)
        self.number_V: Int64Array = 2 * drawn.forward(np.arange(num_lanes, dtype=np.int64)) + half
        self._lane_V = np.argsort(self.number_V)
        self.sorted_V = self.number_V[self._lane_V]

    def lane(self, number_B: Int64Array) -> Int64Array:
        """Return the lane of each whole block, -1 for one that lies in no seam here."""
        at_B = np.minimum(np.searchsorted(self.sorted_V, number_B), len(self.sorted_V) - 1)
        return np.where(self.sorted_V[at_B] == number_B, self._lane_V[at_B], -1)


@dataclass(frozen=True, slots=True, eq=False)
class SlotWindows:
    """What stands at some places of slots."""

    number_B: Int64Array
    """Of the block, among whole or short ones."""
    is_short_B: BoolArray
    """Whether it is a short block. A piece of a seam is a part of a whole one."""
    is_before_B: BoolArray
    """Whether it is a piece of the seam before the epoch."""
    rank_B: Int64Array
    """Which of the block's windows, by the keyed order inside it."""
    start_B: Int64Array
    """The block's windows stand at places [start, stop) of the slots, counted from the slot's own start."""
    stop_B: Int64Array


class SeamSlots:
    """Slot and place <-> block and rank, for one epoch. Holds one int64 per short block and a few per lane.

    The slots of each row are cut into `num_runs` strata of equal make-up, each with one run of short slots at a keyed place.
    Immutable, thread-safe.
    """

    def __init__(
        self,
        kinds: BlockKinds,
        lanes: LaneEpoch,
        before: SeamBlocks,
        after: SeamBlocks,
        num_runs: int,
        whole_keys: tuple[int, ...],
        short_keys: Sequence[tuple[int, ...]],
        run_key: int,
    ) -> None:
        self._kinds, self._width, self._before, self._after = kinds, kinds.blocks.block_windows, before, after
        self._num_rows = len(lanes.row_slot_G1) - 1
        self._lanes_per_row = lanes.num_lanes // self._num_rows
        self._tail_V = lanes.tail_V
        self._pieces = EvenCuts(2 * lanes.num_lanes + kinds.num_short, self._num_rows)
        self._short = DealtOrder(kinds.num_short, short_keys)
        self._start_X1 = self._starts(lanes)
        # Seams are left out of the order of whole blocks: `taken` says how many stand before each place.
        taken = np.sort(np.concatenate([before.number_V, after.number_V]))
        self._taken, self._taken_place = taken, taken - np.arange(len(taken))
        self._whole = KeyedPermutation(max(kinds.num_whole - len(taken), 1), whole_keys)
        # Strata: how many whole and how many short slots stand before each.
        short_G1 = self._start_X1[self._pieces.start(np.arange(self._num_rows + 1))] // self._width
        self._short_T1 = _cut_each(short_G1, num_runs)
        self._whole_T1 = _cut_each(lanes.row_slot_G1 - short_G1, num_runs)
        self._slot_T1 = self._short_T1 + self._whole_T1
        self._before_T = self._place_runs(run_key, num_runs)

    def _starts(self, lanes: LaneEpoch) -> Int64Array:
        """Return where each piece starts: of each row two for each lane, then short blocks."""
        start_X1 = np.zeros(self._pieces.total + 1, dtype=np.int64)
        size_X = start_X1[1:]
        row_G = np.arange(self._num_rows, dtype=np.int64)
        at_GK = self._pieces.start(row_G)[:, None] + 2 * np.arange(self._lanes_per_row)
        # First what the lane's seam at the end leaves: where that is long the lane's slots begin late, so rows do not begin
        # their second pieces all at the same time, as they would the other way round.
        size_X[at_GK] = (self._width - lanes.tail_V).reshape(self._lanes_per_row, -1).T
        size_X[at_GK + 1] = (self._width - lanes.head_V).reshape(self._lanes_per_row, -1).T
        num_short = self._kinds.num_short
        for low in range(0, num_short, _CHUNK):  # in chunks: with 10**7 episodes each temporary would be 80 MB
            place_C = np.arange(low, min(low + _CHUNK, num_short), dtype=np.int64)
            size_X[self._piece_of_short(place_C)] = self._kinds.short_sizes(self._short.forward(place_C))
        np.cumsum(size_X, out=size_X)
        return start_X1

    def _place_runs(self, run_key: int, num_runs: int) -> Int64Array:
        """Return how many whole slots stand before the run in each stratum.

        A run begins more blocks than whole slots do. So rows have theirs one after the other, evenly spread over the time of a
        lane: neighbouring rows are at different places of their slots. Which row is first is keyed, and in which lane.
        """
        num_rows = self._num_rows
        size_T, run_T = np.diff(self._slot_T1), np.diff(self._short_T1)
        lane_T = size_T // max(1, self._lanes_per_row // num_runs)  # slots of a lane, or of all in its part of one
        number_T = np.arange(len(size_T), dtype=np.int64)
        turn_T = (number_T // num_runs + run_key % num_rows) % num_rows
        last_T = size_T - run_T - lane_T  # where a run may start, and its lane's time be over before the stratum is
        draw_T = mix64(np.uint64(run_key) + (number_T % num_runs).astype(np.uint64) * np.uint64(GOLDEN))
        skipped_T = draw_T.astype(np.int64) % (np.maximum(last_T, 0) // np.maximum(lane_T, 1) + 1) * lane_T
        spread_T = np.where(last_T >= 0, lane_T, size_T - run_T)
        before_T = skipped_T + turn_T * spread_T // num_rows
        return np.minimum(before_T, np.maximum(np.diff(self._whole_T1) - 1, 0))

    def _piece_of_short(self, place_B: Int64Array) -> Int64Array:
        row_B = EvenCuts(self._kinds.num_short, self._num_rows).find(place_B)[0]
        return place_B + 2 * self._lanes_per_row * (row_B + 1)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._start_X1.nbytes + 4 * self._slot_T1.nbytes + 2 * self._taken.nbytes

    def find(self, slot_B: Int64Array, place_B: Int64Array) -> SlotWindows:
        """Return what stands at places of slots, flat arrays."""
        stratum_B = _stratum(self._slot_T1, slot_B)
        in_stratum_B, before_B = slot_B - self._slot_T1[stratum_B], self._before_T[stratum_B]
        length_B = self._short_T1[stratum_B + 1] - self._short_T1[stratum_B]
        is_run_B = (in_stratum_B >= before_B) & (in_stratum_B < before_B + length_B)
        nothing_B = np.zeros(len(slot_B), dtype=np.int64)
        number_B, rank_B, start_B = nothing_B, place_B.copy(), nothing_B.copy()
        stop_B = start_B + self._width
        is_short_B, is_before_B = is_run_B.copy(), np.zeros(len(slot_B), dtype=np.bool_)

        at = np.flatnonzero(~is_run_B)
        free_B = self._whole_T1[stratum_B] + in_stratum_B - np.where(in_stratum_B >= before_B, length_B, 0)
        free = self._whole.forward(free_B[at])
        number_B[at] = free + np.searchsorted(self._taken_place, free, side="right")

        at = np.flatnonzero(is_run_B)
        if at.size:
            stratum = stratum_B[at]
            slot = self._short_T1[stratum] + in_stratum_B[at] - before_B[at]
            here = slot * self._width + place_B[at]
            piece = np.asarray(np.searchsorted(self._start_X1, here, side="right"), dtype=np.int64) - 1
            rank_B[at] = here - self._start_X1[piece]
            # Ends of runs cut pieces.
            start_B[at] = np.maximum(self._start_X1[piece], self._short_T1[stratum] * self._width) - slot * self._width
            stop_B[at] = np.minimum(self._start_X1[piece + 1], self._short_T1[stratum + 1] * self._width)
            stop_B[at] -= slot * self._width
            row, i = self._pieces.find(piece)
            is_seam = i < 2 * self._lanes_per_row
            is_short_B[at] = ~is_seam
            number_B[at[~is_seam]] = self._short.forward((piece - 2 * self._lanes_per_row * (row + 1))[~is_seam])
            lane, is_after = i[is_seam] // 2 * self._num_rows + row[is_seam], i[is_seam] % 2 == 0
            number_B[at[is_seam]] = np.where(is_after, self._after.number_V[lane], self._before.number_V[lane])
            rank_B[at[is_seam]] += np.where(is_after, self._tail_V[lane], 0)
            is_before_B[at[is_seam]] = ~is_after
        return SlotWindows(number_B, is_short_B, is_before_B, rank_B, start_B, stop_B)

    def index_whole(self, number_B: Int64Array, rank_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (slot_B, place_B) of windows of whole blocks that lie in no seam of this epoch."""
        free_B = self._whole.inverse(number_B - np.searchsorted(self._taken, number_B))
        stratum_B = _stratum(self._whole_T1, free_B)
        in_stratum_B = free_B - self._whole_T1[stratum_B]
        length_B = self._short_T1[stratum_B + 1] - self._short_T1[stratum_B]
        in_stratum_B += np.where(in_stratum_B >= self._before_T[stratum_B], length_B, 0)
        return self._slot_T1[stratum_B] + in_stratum_B, rank_B

    def index_short(self, number_B: Int64Array, rank_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (slot_B, place_B) of windows of short blocks."""
        return self._index_pieces(self._piece_of_short(self._short.inverse(number_B)), rank_B)

    def index_seam(
        self, lane_B: Int64Array, is_after_B: BoolArray, rank_B: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return (slot_B, place_B) of windows that seams give inside the epoch, by their ranks in the block."""
        k_B, row_B = np.divmod(lane_B, self._num_rows)
        piece_B = self._pieces.start(row_B) + 2 * k_B + ~is_after_B
        return self._index_pieces(piece_B, rank_B - np.where(is_after_B, self._tail_V[lane_B], 0))

    def _index_pieces(self, piece_B: Int64Array, rank_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        slot_B, place_B = np.divmod(self._start_X1[piece_B] + rank_B, self._width)
        stratum_B = _stratum(self._short_T1, slot_B)
        slot_B += self._slot_T1[stratum_B] + self._before_T[stratum_B] - self._short_T1[stratum_B]
        return slot_B, place_B

    def edges(self) -> tuple[Int64Array, Int64Array]:
        """Return (slot_B, place_B): of each seam's pieces the first and the last window, and both sides of each cut by a run's end."""
        lane_V = np.arange(len(self._tail_V), dtype=np.int64)
        both_V, is_after_V = np.tile(lane_V, 2), np.repeat([False, True], len(lane_V))
        row_V = both_V % self._num_rows
        piece_V = self._pieces.start(row_V) + 2 * (both_V // self._num_rows) + ~is_after_V
        size_V = self._start_X1[piece_V + 1] - self._start_X1[piece_V]
        piece_V, size_V = piece_V[size_V > 0], size_V[size_V > 0]
        cut = self._short_T1[1:-1] * self._width
        cut = cut[(cut > 0) & (cut < self._start_X1[-1])]
        sides = np.concatenate([cut - 1, cut])
        side_X = np.asarray(np.searchsorted(self._start_X1, sides, side="right"), dtype=np.int64) - 1
        piece_B = np.concatenate([piece_V, piece_V, side_X])
        return self._index_pieces(
            piece_B, np.concatenate([np.zeros_like(size_V), size_V - 1, sides - self._start_X1[side_X]])
        )


def _cut_each(bound_G1: Int64Array, num_parts: int) -> Int64Array:
    """Return the bounds of every range cut into parts as equal as can be, the longer ones first."""
    start_G, size_G = bound_G1[:-1, None], np.diff(bound_G1)[:, None]
    part = np.arange(num_parts)
    cut_GP = start_G + part * (size_G // num_parts) + np.minimum(part, size_G % num_parts)
    return np.append(cut_GP.reshape(-1), bound_G1[-1])


def _stratum(bound_T1: Int64Array, value_B: Int64Array) -> Int64Array:
    """Return the range that holds each value; empty ranges hold none."""
    found_B = np.asarray(np.searchsorted(bound_T1, value_B, side="right"), dtype=np.int64) - 1
    return np.minimum(found_B, len(bound_T1) - 2)
