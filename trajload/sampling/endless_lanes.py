"""Lanes that do not notice epochs: how `interleaved/3` cuts the positions of all epochs into slots.

Position p of the whole run lies in lane `p % V`, for ever, and each lane is cut into slots of W windows at a phase of its
own, chosen so that in every batch about the same number of lanes begin a slot. The end of an epoch falls inside a slot of
most lanes: the part before it and the part after it are one block, the lane's seam, so nothing begins there.
Source: docs/decisions/0094-interleaved-3.md
"""

# Shapes: B windows, V lanes, G rows, K lanes of a row

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.sampling.row_lanes import spread_multiplier
from trajload.types import Int64Array

__all__ = ["EndlessLanes", "LaneEpoch"]


@dataclass(frozen=True, slots=True, eq=False)
class LaneEpoch:
    """What each lane reads in one epoch: the rest of a seam, whole slots, the start of the next seam.

    Lane `k * G + r` is lane k of row r. The slots of an epoch are numbered by row, then by k.
    """

    shift: int
    """Position of the epoch's first window, mod V."""
    head_V: Int64Array
    """Windows of the seam that began in the epoch before: 1 to W."""
    num_slots_V: Int64Array
    tail_V: Int64Array
    """Windows of the seam that goes on in the next epoch: 0 to W - 1."""
    first_slot_V: Int64Array
    row_slot_G1: Int64Array
    """Slots of row r are [row_slot[r], row_slot[r + 1])."""

    @property
    def num_lanes(self) -> int:
        return len(self.head_V)

    def places(self, offset_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (lane_B, place_B): the lane of each offset, and which of its windows in this epoch."""
        column_B, lane_B = np.divmod(offset_B + self.shift, self.num_lanes)
        return lane_B, column_B - (lane_B < self.shift)

    def offset(self, lane_B: Int64Array, place_B: Int64Array) -> Int64Array:
        """Return the offset of a lane's window; the inverse of `places`."""
        return (place_B + (lane_B < self.shift)) * self.num_lanes + lane_B - self.shift

    def lane_of_slot(self, slot_B: Int64Array) -> Int64Array:
        """Return the lane that reads each slot."""
        num_rows = len(self.row_slot_G1) - 1
        by_row_V = self.first_slot_V.reshape(-1, num_rows).T.reshape(-1)
        turn_B = np.asarray(np.searchsorted(by_row_V, slot_B, side="right"), dtype=np.int64) - 1
        row_B, k_B = np.divmod(turn_B, self.num_lanes // num_rows)
        return k_B * num_rows + row_B


class EndlessLanes:
    """`num_windows` an epoch in V = G * K lanes, epoch after epoch. Immutable; holds one integer a lane."""

    def __init__(self, num_windows: int, global_batch_size: int, lanes_per_row: int, slot_windows: int) -> None:
        """Fix the phases.

        Args:
            num_windows: N, windows of an epoch; at least 2 * W for each lane.
            global_batch_size: G, rows.
            lanes_per_row: K.
            slot_windows: W.
        """
        self.num_windows = num_windows
        self.num_rows = global_batch_size
        self.lanes_per_row = lanes_per_row
        self.num_lanes = global_batch_size * lanes_per_row
        self.slot_windows = slot_windows
        row_G, k_K = np.arange(self.num_rows, dtype=np.int64), np.arange(lanes_per_row, dtype=np.int64)
        # The rows of a batch, which all read lane k, are spread over the slot, and so are the lanes of a row.
        row_G = row_G * spread_multiplier(self.num_rows) % self.num_rows
        turn_K = k_K * spread_multiplier(lanes_per_row) % lanes_per_row
        phase_KG = (row_G * lanes_per_row + turn_K[:, None]) * slot_windows // self.num_lanes
        phase_KG += (k_K * slot_windows // lanes_per_row)[:, None]
        self._phase_V = phase_KG.reshape(-1) % slot_windows

    def read_before(self, epoch: int) -> Int64Array:
        """Return of each lane's seam before `epoch` how many windows come before the epoch's start: 0 to W - 1."""
        # A Python int, which does not overflow.
        column, shift = divmod(epoch * self.num_windows, self.num_lanes)
        lane_V = np.arange(self.num_lanes, dtype=np.int64)
        return np.asarray((column % self.slot_windows + (lane_V < shift) + self._phase_V) % self.slot_windows)

    def epoch(self, epoch: int) -> LaneEpoch:
        """Return what is read in an epoch."""
        shift = epoch * self.num_windows % self.num_lanes
        lane_V = np.arange(self.num_lanes, dtype=np.int64)
        length_V = (shift + self.num_windows - 1 - lane_V) // self.num_lanes + 1 - (lane_V < shift)
        head_V, tail_V = self.slot_windows - self.read_before(epoch), self.read_before(epoch + 1)
        num_slots_V = (length_V - head_V - tail_V) // self.slot_windows
        by_row = num_slots_V.reshape(self.lanes_per_row, self.num_rows).T
        stop_V = np.cumsum(by_row.reshape(-1))
        first_V = (stop_V - by_row.reshape(-1)).reshape(by_row.shape).T.reshape(-1)
        return LaneEpoch(
            shift=shift,
            head_V=head_V,
            num_slots_V=num_slots_V,
            tail_V=tail_V,
            first_slot_V=np.ascontiguousarray(first_V),
            row_slot_G1=np.concatenate([[0], stop_V[self.lanes_per_row - 1 :: self.lanes_per_row]]),
        )
