"""interleaved/2: a sequence of slots of equal size, read in lanes that keep to their row and begin blocks evenly.

`slots.py` says what the sequence is, `row_lanes.py` how it is read; inside each block windows come in keyed order.
Source: docs/decisions/0074-interleaved-2.md
"""

# Shapes: B offsets or windows, P parts of blocks, R rounds

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.sampling.block_kinds import BlockKinds
from trajload.sampling.block_sums import permute_inside
from trajload.sampling.deal import NUM_HANDS
from trajload.sampling.interleaved import BlockUses, InterleavedOrder
from trajload.sampling.order_base import EpochCache, OrderInputs, check_epoch, check_range, round_keys
from trajload.sampling.row_lanes import RowLanes
from trajload.sampling.slots import SlotLayout, SlotSequence
from trajload.types import Int64Array, UInt64Array

__all__ = ["Interleaved2Order"]

_PURPOSE = "interleaved/2"


@dataclass(frozen=True, slots=True, eq=False)
class _Epoch:
    sequence: SlotSequence
    key_R: UInt64Array


class Interleaved2Order(InterleavedOrder):
    """See the module. Keeps tables of O(episodes) for the last two epochs asked for; thread-safe."""

    version = "interleaved/2"

    def __init__(self, inputs: OrderInputs, *, block_windows: int, lanes_per_row: int) -> None:
        """Fix slots and lanes; see `InterleavedOrder`."""
        super().__init__(inputs, block_windows=block_windows, lanes_per_row=lanes_per_row)
        self._layout = SlotLayout(BlockKinds(self.blocks))
        self.lanes = RowLanes(self.num_windows, self.global_batch_size, self.lanes_per_row, self.blocks.block_windows)
        self._epochs: EpochCache[_Epoch] = EpochCache(self._make_epoch)

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        offset_B = check_range("offset", offset_B, self.num_windows)
        tables = self._epochs.get(check_epoch(epoch))
        found = tables.sequence.find(self.lanes.places(offset_B.reshape(-1)).index_B)
        blocks = found.blocks
        inside_B = permute_inside(found.rank_B, blocks.size_B, blocks.block_B, tables.key_R, is_inverse=False)
        return (blocks.first_window_id_B + inside_B).reshape(offset_B.shape)

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        window_id_B = check_range("window id", window_id_B, self.num_windows)
        block_B, inside_B, size_B = self.blocks.block_of(window_id_B.reshape(-1))
        tables = self._epochs.get(check_epoch(epoch))
        rank_B = permute_inside(inside_B, size_B, block_B, tables.key_R, is_inverse=True)
        return self.lanes.offset(tables.sequence.index(block_B, size_B, rank_B)).reshape(window_id_B.shape)

    def block_of(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        return self.block_uses(epoch, offset_B).block_B

    def lane_of(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        return check_range("offset", offset_B, self.num_windows) % self.num_lanes

    def block_uses(self, epoch: int, offset_B: Int64Array) -> BlockUses:
        offset_B = check_range("offset", offset_B, self.num_windows)
        return self._uses(check_epoch(epoch), offset_B.reshape(-1))[0]

    def cut_parts(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        sequence = self._epochs.get(check_epoch(epoch)).sequence
        # Every use that is less than a block touches one of these cuts.
        offset_C = np.concatenate([self.lanes.edge_offsets(), self.lanes.offset(sequence.run_edges())])
        uses, start_C = self._uses(epoch, offset_C)
        first_P = np.unique(start_C[uses.use_size_B < uses.size_B], return_index=True)[1]
        is_part_C = np.flatnonzero(uses.use_size_B < uses.size_B)[first_P]
        return uses.block_B[is_part_C], uses.lane_B[is_part_C]

    def _uses(self, epoch: int, offset_B: Int64Array) -> tuple[BlockUses, Int64Array]:
        """Return the uses of flat offsets, and where in the sequence each begins."""
        read = self.lanes.places(offset_B)
        found = self._epochs.get(epoch).sequence.find(read.index_B)
        start_B, stop_B = np.maximum(found.start_B, read.start_B), np.minimum(found.stop_B, read.stop_B)
        uses = BlockUses(
            block_B=found.blocks.block_B,
            lane_B=read.lane_B,
            episode_B=found.blocks.episode_B,
            first_window_id_B=found.blocks.first_window_id_B,
            size_B=found.blocks.size_B,
            use_size_B=stop_B - start_B,
            use_epoch_B=np.full_like(offset_B, epoch),
            begins_B=read.index_B == start_B,
            ends_B=read.index_B == stop_B - 1,
        )
        return uses, start_B

    def _make_epoch(self, epoch: int) -> _Epoch:
        whole, inside, runs, *hands = (
            round_keys(self.seed, _PURPOSE, epoch, part=part) for part in range(3 + NUM_HANDS)
        )
        return _Epoch(SlotSequence(self._layout, whole, hands, runs[0]), np.array(inside, dtype=np.uint64))
