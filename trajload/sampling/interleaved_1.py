"""interleaved/1: blocks in keyed order, windows in keyed order inside each, written into lanes and read across them.

Nothing is stored per window or block, and any offset is computed directly.
Source: docs/decisions/0044-interleaved-order.md
"""

# Shapes: B offsets or windows, C lanes, P parts of blocks, R rounds

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.sampling.block_sums import BlockSums, permute_inside
from trajload.sampling.interleaved import BlockUses, InterleavedOrder
from trajload.sampling.lanes import Lanes
from trajload.sampling.order_base import EpochCache, OrderInputs, check_epoch, check_range, round_keys
from trajload.sampling.permute import KeyedPermutation
from trajload.types import Int64Array, UInt64Array

__all__ = ["Interleaved1Order"]

_PURPOSE = "interleaved"


@dataclass(frozen=True, slots=True, eq=False)
class _Epoch:
    permutation: KeyedPermutation
    sums: BlockSums
    key_R: UInt64Array


class Interleaved1Order(InterleavedOrder):
    """See the module. Keeps tables of O(episodes) for the last two epochs asked for; thread-safe."""

    version = "interleaved/1"

    def __init__(self, inputs: OrderInputs, *, block_windows: int, lanes_per_row: int) -> None:
        """Fix the lanes; see `InterleavedOrder`."""
        super().__init__(inputs, block_windows=block_windows, lanes_per_row=lanes_per_row)
        self.lanes = Lanes(self.num_windows, self.num_lanes)
        self._epochs: EpochCache[_Epoch] = EpochCache(self._make_epoch)

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        index_B = self.lanes.index(check_range("offset", offset_B, self.num_windows))
        tables = self._epochs.get(check_epoch(epoch))
        place_B, rank_B = tables.sums.find(index_B)
        block_B = tables.permutation.forward(place_B)
        _, first_B, size_B = self.blocks.locate(block_B)
        return first_B + permute_inside(rank_B, size_B, block_B, tables.key_R, is_inverse=False)

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        block_B, rank_B, size_B = self.blocks.block_of(check_range("window id", window_id_B, self.num_windows))
        tables = self._epochs.get(check_epoch(epoch))
        rank_B = permute_inside(rank_B, size_B, block_B, tables.key_R, is_inverse=True)
        return self.lanes.offset(tables.sums.start(tables.permutation.inverse(block_B)) + rank_B)

    def block_of(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        index_B = self.lanes.index(check_range("offset", offset_B, self.num_windows))
        tables = self._epochs.get(check_epoch(epoch))
        return tables.permutation.forward(tables.sums.find(index_B)[0])

    def lane_of(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        return self.lanes.lane(check_range("offset", offset_B, self.num_windows))

    def block_uses(self, epoch: int, offset_B: Int64Array) -> BlockUses:
        offset_B = check_range("offset", offset_B, self.num_windows)
        lane_B, index_B = self.lanes.lane(offset_B), self.lanes.index(offset_B)
        tables = self._epochs.get(check_epoch(epoch))
        place_B, rank_B = tables.sums.find(index_B)
        block_B = tables.permutation.forward(place_B)
        episode_B, first_B, size_B = self.blocks.locate(block_B)
        lane_start_B, lane_stop_B = self.lanes.bounds(lane_B)
        start_B = np.maximum(index_B - rank_B, lane_start_B)
        stop_B = np.minimum(index_B - rank_B + size_B, lane_stop_B)
        return BlockUses(
            block_B=block_B,
            lane_B=lane_B,
            episode_B=episode_B,
            first_window_id_B=first_B,
            size_B=size_B,
            use_size_B=stop_B - start_B,
            use_epoch_B=np.full_like(index_B, epoch),
            begins_B=index_B == start_B,
            ends_B=index_B == stop_B - 1,
        )

    def cut_parts(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        # Only a block in which a lane begins has several uses: there, and in the lane before.
        start_V, stop_V = self.lanes.bounds(np.arange(self.num_lanes, dtype=np.int64))
        lane_C = np.flatnonzero(start_V < stop_V)
        tables = self._epochs.get(check_epoch(epoch))
        place_C, rank_C = tables.sums.find(start_V[lane_C])
        lane_C, block_C = lane_C[rank_C > 0], tables.permutation.forward(place_C[rank_C > 0])
        # A small lane may lie inside a block whole, and then is both a lane that begins there and the one before.
        pair_P2 = np.unique(
            np.stack([np.tile(block_C, 2), np.concatenate([lane_C - 1, lane_C])], axis=1), axis=0
        ).reshape(-1, 2)
        return pair_P2[:, 0], pair_P2[:, 1]

    def _make_epoch(self, epoch: int) -> _Epoch:
        permutation = KeyedPermutation(self.blocks.num_blocks, round_keys(self.seed, _PURPOSE, epoch))
        block_S, lacking_S = self.blocks.short_blocks()
        sums = BlockSums(self.blocks.num_blocks, self.blocks.block_windows, permutation.inverse(block_S), lacking_S)
        return _Epoch(permutation, sums, np.array(round_keys(self.seed, _PURPOSE, epoch, part=1), dtype=np.uint64))
