"""The block interleaver: a sequence written into lanes one after the other, and read across them."""

# Shapes: B windows

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.types import Int64Array

__all__ = ["Lanes"]


@dataclass(frozen=True, slots=True)
class Lanes:
    """`num_lanes` lanes over a sequence of `num_windows`; the first `num_windows % num_lanes` are one longer.

    Offset o is column `o // num_lanes` of lane `o % num_lanes`; the last column may be incomplete. With num_lanes a
    multiple of the global batch size a lane stays on one row of the batch for a whole epoch.
    """

    num_windows: int
    num_lanes: int

    def lane(self, offset_B: Int64Array) -> Int64Array:
        """Return the lane of each offset."""
        return offset_B % self.num_lanes

    def bounds(self, lane_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the half-open part [start_B, stop_B) of the sequence that each lane holds."""
        length, num_longer = divmod(self.num_windows, self.num_lanes)
        start_B = lane_B * length + np.minimum(lane_B, num_longer)
        return start_B, start_B + length + (lane_B < num_longer)

    def index(self, offset_B: Int64Array) -> Int64Array:
        """Return where in the sequence each offset reads."""
        column_B, lane_B = np.divmod(offset_B, self.num_lanes)
        return np.asarray(self.bounds(lane_B)[0] + column_B, dtype=np.int64)

    def offset(self, index_B: Int64Array) -> Int64Array:
        """Return the offset at which each place of the sequence is read; the inverse of `index`."""
        length, num_longer = divmod(self.num_windows, self.num_lanes)
        in_longer = num_longer * (length + 1)
        is_long_B = index_B < in_longer
        long_lane_B, long_column_B = np.divmod(index_B, length + 1)
        # With length 0 every place lies in a longer lane, and the short branch is not taken.
        lane_B, column_B = np.divmod(index_B - in_longer, max(length, 1))
        lane_B = np.where(is_long_B, long_lane_B, lane_B + num_longer)
        column_B = np.where(is_long_B, long_column_B, column_B)
        return np.asarray(column_B * self.num_lanes + lane_B, dtype=np.int64)
