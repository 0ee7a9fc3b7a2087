"""What all versions of `interleaved` share: blocks in lanes, and what is told of their uses.

`interleaved_1.py`, `_2` and `_3` hold the arithmetic; nothing outside of `orders.py` needs to know which it has.
"""

# Shapes: B offsets or windows, P parts of blocks

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from trajload.checks import check_int
from trajload.sampling.blocks import BlockTable, check_block_windows
from trajload.sampling.order_base import OrderInputs
from trajload.types import BoolArray, Int64Array

__all__ = ["MAX_LANES_PER_ROW", "BlockUses", "InterleavedOrder", "check_lanes_per_row"]

MAX_LANES_PER_ROW = 2**16


def check_lanes_per_row(lanes_per_row: int) -> int:
    """Return `lanes_per_row` if it is an int in [1, 2**16], else raise ConfigError."""
    return check_int("lanes_per_row", lanes_per_row, 1, MAX_LANES_PER_ROW + 1)


@dataclass(frozen=True, slots=True, eq=False)
class BlockUses:
    """The block behind each of some rows, and whether its use begins or ends there.

    A use is a run of windows of one block in one lane: they come every `lanes_per_row` batches on the same row,
    so a pool decodes the block where the use begins and frees it where it ends. (use_epoch, lane, block) names a use while it
    lasts. A block cut between two lanes is two uses. Since `interleaved/2` a block may also be cut between two parts of
    one lane: two uses of the same name, of which the first ends before the second begins. In `interleaved/3` a use may go
    on in the next epoch.
    """

    block_B: Int64Array
    lane_B: Int64Array
    episode_B: Int64Array
    first_window_id_B: Int64Array
    """Windows of the block are [first_window_id, first_window_id + size)."""
    size_B: Int64Array
    use_size_B: Int64Array
    """Windows of this use, at most `size_B`."""
    use_epoch_B: Int64Array
    """Epoch in which the use began."""
    begins_B: BoolArray
    ends_B: BoolArray


class InterleavedOrder(ABC):
    """Every window once an epoch, mixed like a shuffle, each block of neighbours used within a short time."""

    version: ClassVar[str]

    def __init__(self, inputs: OrderInputs, *, block_windows: int, lanes_per_row: int) -> None:
        """Cut blocks, and fix the number of lanes.

        Args:
            inputs: Windows of each episode, seed and global_batch_size (G).
            block_windows: W, windows of a whole block.
            lanes_per_row: K; there are V = G * K lanes. On small data K is lowered until there is a block for each
                lane, but not below 1: V stays a multiple of G, so that a lane never changes its row.
        """
        first_E1, self.global_batch_size = inputs.layout(self.version)
        self.num_windows = inputs.num_windows
        self.seed = inputs.seed
        self.blocks = BlockTable(first_E1, check_block_windows(block_windows))
        fitting = self.blocks.num_blocks // self.global_batch_size
        self.lanes_per_row = max(1, min(check_lanes_per_row(lanes_per_row), fitting))

    @property
    def num_lanes(self) -> int:
        """V: blocks in use at any time."""
        return self.global_batch_size * self.lanes_per_row

    @abstractmethod
    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        """See `Order`."""

    @abstractmethod
    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        """See `Order`."""

    @abstractmethod
    def block_of(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        """Return the block that the window at each offset of `epoch` belongs to."""

    @abstractmethod
    def lane_of(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        """Return the lane of each offset."""

    def first_row(self, epoch: int) -> int:
        """Return the row of the global batch that lane 0 is on in `epoch`; the next lanes are on the next rows."""
        return epoch * self.num_windows % self.global_batch_size

    @abstractmethod
    def block_uses(self, epoch: int, offset_B: Int64Array) -> BlockUses:
        """Return the block use behind each offset, and whether it begins or ends there."""

    @abstractmethod
    def cut_parts(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        """Return (block_P, lane_P): each use of the blocks that are used more than once in `epoch`."""

    def num_continued(self, epoch: int) -> int:
        """Return how many uses that `epoch` has began before it."""
        return 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_lanes} lanes, {self.blocks!r})"
