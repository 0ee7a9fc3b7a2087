"""interleaved/1: every window once an epoch, mixed like a shuffle, each block of neighbours used within a short time.

Blocks come in keyed order, windows in keyed order inside each block; this sequence is written into lanes and read
across them (`lanes.py`). Nothing is stored per window or block, and any offset is computed directly.
Source: docs/decisions/0044-interleaved-order.md
"""

# Shapes: B offsets or windows, E episodes, R rounds

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.errors import ConfigError
from trajload.sampling.block_sums import BlockSums, permute_inside
from trajload.sampling.blocks import BlockTable, check_block_windows
from trajload.sampling.lanes import Lanes
from trajload.sampling.order_base import EpochCache, OrderInputs, check_epoch, check_range, round_keys
from trajload.sampling.permute import KeyedPermutation
from trajload.types import BoolArray, Int64Array, UInt64Array

__all__ = ["MAX_LANES_PER_ROW", "BlockUses", "InterleavedOrder", "check_lanes_per_row"]

MAX_LANES_PER_ROW = 2**16
_PURPOSE = "interleaved"


def check_lanes_per_row(lanes_per_row: int) -> int:
    """Return `lanes_per_row` if it is an int in [1, 2**16], else raise ConfigError."""
    if (
        isinstance(lanes_per_row, bool)
        or not isinstance(lanes_per_row, (int, np.integer))
        or not 1 <= lanes_per_row <= MAX_LANES_PER_ROW
    ):
        raise ConfigError(
            f"lanes_per_row={lanes_per_row!r} is invalid: expected an int with 1 <= lanes_per_row <= {MAX_LANES_PER_ROW}."
        )
    return int(lanes_per_row)


@dataclass(frozen=True, slots=True, eq=False)
class BlockUses:
    """The block behind each of some rows, and whether its use begins or ends there.

    A use is one block in one lane of one epoch, (epoch, lane, block): its windows come every `lanes_per_row` batches
    on the same row, so a pool decodes the block where the use begins and frees it where it ends. A block cut between
    two lanes is two uses.
    """

    block_B: Int64Array
    lane_B: Int64Array
    episode_B: Int64Array
    first_window_id_B: Int64Array
    """Windows of the block are [first_window_id, first_window_id + size)."""
    size_B: Int64Array
    begins_B: BoolArray
    ends_B: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class _Epoch:
    permutation: KeyedPermutation
    sums: BlockSums
    key_R: UInt64Array


class InterleavedOrder:
    """See the module. Keeps tables of O(episodes) for the last two epochs asked for; thread-safe."""

    version = "interleaved/1"

    def __init__(self, inputs: OrderInputs, *, block_windows: int, lanes_per_row: int) -> None:
        """Fix the lanes.

        Args:
            inputs: Windows of each episode, seed and global_batch_size (G).
            block_windows: W, windows of a whole block.
            lanes_per_row: K; there are V = G * K lanes. On small data K is lowered until there is a block for each
                lane, but not below 1: V stays a multiple of G, so that a lane never changes its row.
        """
        first_E1, global_batch_size = inputs.layout(self.version)
        self.num_windows = inputs.num_windows
        self.seed = inputs.seed
        self.blocks = BlockTable(first_E1, check_block_windows(block_windows))
        fitting = self.blocks.num_blocks // global_batch_size
        self.lanes_per_row = max(1, min(check_lanes_per_row(lanes_per_row), fitting))
        self.lanes = Lanes(self.num_windows, global_batch_size * self.lanes_per_row)
        self._epochs: EpochCache[_Epoch] = EpochCache(self._make_epoch)

    @property
    def num_lanes(self) -> int:
        """V: blocks in use at any time."""
        return self.lanes.num_lanes

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
        """Return the block that the window at each offset of `epoch` belongs to."""
        index_B = self.lanes.index(check_range("offset", offset_B, self.num_windows))
        tables = self._epochs.get(check_epoch(epoch))
        return tables.permutation.forward(tables.sums.find(index_B)[0])

    def lane_of(self, offset_B: Int64Array) -> Int64Array:
        """Return the lane of each offset, the same in every epoch."""
        return self.lanes.lane(check_range("offset", offset_B, self.num_windows))

    def block_uses(self, epoch: int, offset_B: Int64Array) -> BlockUses:
        """Return the block use behind each offset, and whether it begins or ends there."""
        offset_B = check_range("offset", offset_B, self.num_windows)
        lane_B, index_B = self.lanes.lane(offset_B), self.lanes.index(offset_B)
        tables = self._epochs.get(check_epoch(epoch))
        place_B, rank_B = tables.sums.find(index_B)
        block_B = tables.permutation.forward(place_B)
        episode_B, first_B, size_B = self.blocks.locate(block_B)
        lane_start_B, lane_stop_B = self.lanes.bounds(lane_B)
        return BlockUses(
            block_B=block_B,
            lane_B=lane_B,
            episode_B=episode_B,
            first_window_id_B=first_B,
            size_B=size_B,
            begins_B=(rank_B == 0) | (index_B == lane_start_B),
            ends_B=(rank_B == size_B - 1) | (index_B == lane_stop_B - 1),
        )

    def cut_blocks(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        """Return (lane_C, block_C): the lanes that begin inside a block, whose first part the lane before them holds."""
        start_V, stop_V = self.lanes.bounds(np.arange(self.num_lanes, dtype=np.int64))
        lane_C = np.flatnonzero(start_V < stop_V)
        tables = self._epochs.get(check_epoch(epoch))
        place_C, rank_C = tables.sums.find(start_V[lane_C])
        return lane_C[rank_C > 0], tables.permutation.forward(place_C[rank_C > 0])

    def _make_epoch(self, epoch: int) -> _Epoch:
        permutation = KeyedPermutation(self.blocks.num_blocks, round_keys(self.seed, _PURPOSE, epoch))
        block_S, lacking_S = self.blocks.short_blocks()
        sums = BlockSums(self.blocks.num_blocks, self.blocks.block_windows, permutation.inverse(block_S), lacking_S)
        return _Epoch(permutation, sums, np.array(round_keys(self.seed, _PURPOSE, epoch, part=1), dtype=np.uint64))

    def __repr__(self) -> str:
        return f"InterleavedOrder({self.num_lanes} lanes, {self.blocks!r})"
