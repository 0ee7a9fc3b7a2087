"""interleaved/3: the slots of interleaved/2, in lanes that go on across the ends of epochs.

`endless_lanes.py` says how positions become slots, `seam_slots.py` what the slots of an epoch hold; inside each block
windows come in keyed order.
Source: docs/decisions/0094-interleaved-3.md
"""

# Shapes: B offsets or windows, P parts of blocks, R rounds

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.sampling.block_kinds import BlockKinds, BlockPlaces
from trajload.sampling.block_sums import permute_inside
from trajload.sampling.deal import NUM_HANDS
from trajload.sampling.endless_lanes import EndlessLanes, LaneEpoch
from trajload.sampling.interleaved import BlockUses, InterleavedOrder
from trajload.sampling.interleaved_2 import Interleaved2Order
from trajload.sampling.order_base import EpochCache, OrderInputs, check_epoch, check_range, round_keys
from trajload.sampling.seam_slots import SeamBlocks, SeamSlots
from trajload.sampling.slots import BLOCKS_PER_RUN
from trajload.types import BoolArray, Int64Array, UInt64Array

__all__ = ["Interleaved3Order"]

_PURPOSE = "interleaved/3"
_INSIDE, _RUNS, _SEAM, _HANDS = 1, 2, 3, 4
"""Parts of an epoch's keys; 0 orders whole blocks."""
_MIN_SLOTS = 6
"""Of a lane: seams use one block a lane twice an epoch, which in shorter lanes would be felt in how evenly blocks begin."""


@dataclass(frozen=True, slots=True, eq=False)
class _Epoch:
    lanes: LaneEpoch
    slots: SeamSlots
    before: SeamBlocks
    after: SeamBlocks
    key_before_R: UInt64Array
    """Of the order inside blocks of the seam before the epoch."""
    key_R: UInt64Array


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What some offsets read."""

    blocks: BlockPlaces
    rank_B: Int64Array
    is_before_B: BoolArray
    """Whether the block belongs to the seam before the epoch."""
    lane_B: Int64Array
    place_B: Int64Array
    start_B: Int64Array
    """The use has places [start, stop) of the lane; below 0 those in the epoch before."""
    stop_B: Int64Array


class Interleaved3Order(InterleavedOrder):
    """See the module. Keeps tables of O(episodes + lanes) for the last two epochs asked for; thread-safe.

    Data with too few whole blocks for seams are read as `interleaved/2` reads them.
    """

    version = "interleaved/3"

    def __init__(self, inputs: OrderInputs, *, block_windows: int, lanes_per_row: int) -> None:
        """Fix the lanes; see `InterleavedOrder`."""
        super().__init__(inputs, block_windows=block_windows, lanes_per_row=lanes_per_row)
        kinds = self._kinds = BlockKinds(self.blocks)
        self._plain: Interleaved2Order | None = None
        if not self._has_room_for_seams():
            self._plain = Interleaved2Order(inputs, block_windows=block_windows, lanes_per_row=lanes_per_row)
            return
        width, num_rows = self.blocks.block_windows, self.global_batch_size
        self._lanes = EndlessLanes(self.num_windows, num_rows, self.lanes_per_row, width)
        in_runs = min(self.blocks.num_blocks // BLOCKS_PER_RUN, kinds.num_short_windows // width)
        self._num_runs = max(1, in_runs // num_rows)
        self._epochs: EpochCache[_Epoch] = EpochCache(self._make_epoch)

    @property
    def has_seams(self) -> bool:
        """Whether blocks lie across the ends of epochs, so that none begins there."""
        return self._plain is None

    def _has_room_for_seams(self) -> bool:
        """Return whether lanes are long enough for blocks to begin evenly in spite of the pieces that seams leave.

        And whether each row has whole slots in every epoch, besides its seams, their pieces, and short blocks.
        """
        width, lanes = self.blocks.block_windows, self.lanes_per_row
        if self.num_windows < _MIN_SLOTS * width * self.num_lanes:
            return False
        short = -(-self._kinds.num_short // self.global_batch_size) * (width - 1)
        spare = lanes * (self.num_windows // self.num_lanes - 2 * width) - short - width
        return spare >= 0 and self._kinds.num_whole // 2 >= self.num_lanes

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        if self._plain is not None:
            return self._plain.window_ids(epoch, offset_B)
        offset_B = check_range("offset", offset_B, self.num_windows)
        tables = self._epochs.get(check_epoch(epoch))
        found = self._find(tables, offset_B.reshape(-1))
        inside_B = self._inside(
            tables, found.rank_B, found.blocks.size_B, found.blocks.block_B, found.is_before_B, is_inverse=False
        )
        return (found.blocks.first_window_id_B + inside_B).reshape(offset_B.shape)

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        if self._plain is not None:
            return self._plain.offsets(epoch, window_id_B)
        window_id_B = check_range("window id", window_id_B, self.num_windows)
        tables = self._epochs.get(check_epoch(epoch))
        lanes, slots, width = tables.lanes, tables.slots, self.blocks.block_windows
        block_B, inside_B, size_B = self.blocks.block_of(window_id_B.reshape(-1))
        is_short_B, number_B = self._kinds.numbers(block_B, size_B)
        before_B = np.where(is_short_B, -1, tables.before.lane(number_B))
        after_B = np.where(is_short_B, -1, tables.after.lane(number_B))
        rank_B = self._inside(tables, inside_B, size_B, block_B, before_B >= 0, is_inverse=True)
        seam_B = np.maximum(before_B, after_B)
        is_after_B = after_B >= 0
        tail_B = np.where(is_after_B, lanes.tail_V[seam_B], 0)
        read_before_B = np.where(is_after_B, 0, width - lanes.head_V[seam_B])
        is_at_seam_B = (seam_B >= 0) & np.where(is_after_B, rank_B < tail_B, rank_B >= read_before_B)

        slot_B, in_slot_B = np.zeros_like(rank_B), np.zeros_like(rank_B)
        at = np.flatnonzero(is_short_B)
        slot_B[at], in_slot_B[at] = slots.index_short(number_B[at], rank_B[at])
        at = np.flatnonzero(~is_short_B & (seam_B < 0))
        slot_B[at], in_slot_B[at] = slots.index_whole(number_B[at], rank_B[at])
        at = np.flatnonzero(~is_at_seam_B & (seam_B >= 0))
        slot_B[at], in_slot_B[at] = slots.index_seam(seam_B[at], is_after_B[at], rank_B[at])
        lane_B = np.where(is_at_seam_B, seam_B, lanes.lane_of_slot(slot_B))
        head_B = lanes.head_V[lane_B]
        place_B = head_B + (slot_B - lanes.first_slot_V[lane_B]) * width + in_slot_B
        at_end_B = head_B + lanes.num_slots_V[lane_B] * width + rank_B
        at_seam_B = np.where(is_after_B, at_end_B, rank_B - read_before_B)
        return lanes.offset(lane_B, np.where(is_at_seam_B, at_seam_B, place_B)).reshape(window_id_B.shape)

    def block_of(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        return self.block_uses(epoch, offset_B).block_B

    def lane_of(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        if self._plain is not None:
            return self._plain.lane_of(epoch, offset_B)
        return (check_range("offset", offset_B, self.num_windows) + self._shift(epoch)) % self.num_lanes

    def first_row(self, epoch: int) -> int:
        return super().first_row(epoch) if self._plain is not None else 0

    def _shift(self, epoch: int) -> int:
        return epoch * self.num_windows % self.num_lanes

    def block_uses(self, epoch: int, offset_B: Int64Array) -> BlockUses:
        if self._plain is not None:
            return self._plain.block_uses(epoch, offset_B)
        offset_B = check_range("offset", offset_B, self.num_windows)
        tables = self._epochs.get(check_epoch(epoch))
        return _uses(epoch, self._find(tables, offset_B.reshape(-1)))

    def cut_parts(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        if self._plain is not None:
            return self._plain.cut_parts(epoch)
        tables = self._epochs.get(check_epoch(epoch))
        lanes, width = tables.lanes, self.blocks.block_windows
        # A block with several uses has one at each of these: ends of lanes and of their slots, and what cuts short pieces.
        lane_V = np.arange(self.num_lanes, dtype=np.int64)
        inner_V = lanes.num_slots_V * width
        places = [np.zeros_like(lane_V), lanes.head_V, lanes.head_V + inner_V - 1, lanes.head_V + inner_V]
        has_slots_V, has_tail_V = lanes.num_slots_V > 0, lanes.tail_V > 0
        kept = [np.ones_like(has_tail_V), has_slots_V, has_slots_V, has_tail_V]
        offsets = [lanes.offset(lane_V[keep], place[keep]) for place, keep in zip(places, kept, strict=True)]
        slot_B, in_slot_B = tables.slots.edges()
        lane_B = lanes.lane_of_slot(slot_B)
        place_B = lanes.head_V[lane_B] + (slot_B - lanes.first_slot_V[lane_B]) * width + in_slot_B
        found = self._find(tables, np.concatenate([*offsets, lanes.offset(lane_B, place_B)]))
        each_P3 = np.unique(np.stack([found.blocks.block_B, found.lane_B, found.start_B], axis=1), axis=0)
        _, which_P, count = np.unique(each_P3[:, 0], return_inverse=True, return_counts=True)
        each_P3 = each_P3[count[which_P.reshape(-1)] > 1]
        return each_P3[:, 0], each_P3[:, 1]

    def num_continued(self, epoch: int) -> int:
        if self._plain is not None or epoch == 0:
            return 0
        return int((self._lanes.read_before(epoch) > 0).sum())

    # ---- one epoch ----

    def _find(self, tables: _Epoch, offset_B: Int64Array) -> _Found:
        """Return what flat offsets read."""
        lanes, width = tables.lanes, self.blocks.block_windows
        lane_B, place_B = lanes.places(offset_B)
        head_B = lanes.head_V[lane_B]
        end_B = head_B + lanes.num_slots_V[lane_B] * width
        is_head_B, is_tail_B = place_B < head_B, place_B >= end_B
        number_B = np.where(is_tail_B, tables.after.number_V[lane_B], tables.before.number_V[lane_B])
        start_B = np.where(is_tail_B, end_B, head_B - width)
        rank_B, stop_B = place_B - start_B, start_B + width
        is_short_B, is_before_B = np.zeros(len(offset_B), dtype=np.bool_), is_head_B

        at = np.flatnonzero(~is_head_B & ~is_tail_B)
        in_lane, in_slot = np.divmod(place_B[at] - head_B[at], width)
        inner = tables.slots.find(lanes.first_slot_V[lane_B[at]] + in_lane, in_slot)
        number_B[at], rank_B[at] = inner.number_B, inner.rank_B
        is_short_B[at], is_before_B[at] = inner.is_short_B, inner.is_before_B
        slot_start = place_B[at] - in_slot
        # A run of short pieces may go on in the row's next lane.
        start_B[at] = np.maximum(slot_start + inner.start_B, head_B[at])
        stop_B[at] = np.minimum(slot_start + inner.stop_B, end_B[at])
        return _Found(self._places(number_B, is_short_B), rank_B, is_before_B, lane_B, place_B, start_B, stop_B)

    def _places(self, number_B: Int64Array, is_short_B: BoolArray) -> BlockPlaces:
        if not is_short_B.any():
            return self._kinds.whole(number_B)
        names = ("block_B", "episode_B", "first_window_id_B", "size_B")
        out = {name: np.empty(len(number_B), dtype=np.int64) for name in names}
        for at, find in ((~is_short_B, self._kinds.whole), (is_short_B, self._kinds.short)):
            found = find(number_B[at])
            for name in names:
                out[name][at] = getattr(found, name)
        return BlockPlaces(**out)

    def _inside(
        self,
        tables: _Epoch,
        rank_B: Int64Array,
        size_B: Int64Array,
        block_B: Int64Array,
        is_before_B: BoolArray,
        *,
        is_inverse: bool,
    ) -> Int64Array:
        out_B = permute_inside(rank_B, size_B, block_B, tables.key_R, is_inverse=is_inverse)
        at = np.flatnonzero(is_before_B)
        if at.size:
            out_B[at] = permute_inside(rank_B[at], size_B[at], block_B[at], tables.key_before_R, is_inverse=is_inverse)
        return out_B

    def _make_epoch(self, epoch: int) -> _Epoch:
        lanes = self._lanes.epoch(epoch)
        # A seam is named by the epoch that it begins in; the first epoch has one before it too.
        before, after = (
            SeamBlocks(self._kinds.num_whole, self.num_lanes, e, self._keys(e, _SEAM)) for e in (epoch - 1, epoch)
        )
        slots = SeamSlots(
            self._kinds,
            lanes,
            before,
            after,
            self._num_runs,
            self._keys(epoch, 0),
            [self._keys(epoch, _HANDS + hand) for hand in range(NUM_HANDS)],
            self._keys(epoch, _RUNS)[0],
        )
        inside = (np.array(self._keys(e, _INSIDE), dtype=np.uint64) for e in (epoch - 1, epoch))
        return _Epoch(lanes, slots, before, after, *inside)

    def _keys(self, epoch: int, part: int) -> tuple[int, ...]:
        return round_keys(self.seed, _PURPOSE, epoch, part=part)


def _uses(epoch: int, found: _Found) -> BlockUses:
    # What began before the first epoch begins with it.
    start_B = found.start_B if epoch else np.maximum(found.start_B, 0)
    return BlockUses(
        block_B=found.blocks.block_B,
        lane_B=found.lane_B,
        episode_B=found.blocks.episode_B,
        first_window_id_B=found.blocks.first_window_id_B,
        size_B=found.blocks.size_B,
        use_size_B=found.stop_B - start_B,
        use_epoch_B=np.full(len(start_B), epoch, dtype=np.int64) - (start_B < 0),
        begins_B=found.place_B == start_B,
        ends_B=found.place_B == found.stop_B - 1,
    )
