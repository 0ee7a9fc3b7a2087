"""Whole and short blocks numbered apart: `interleaved/2` permutes each kind by itself."""

# Shapes: E episodes, B blocks or windows, S short blocks

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trajload.sampling.blocks import BlockTable
from trajload.sampling.permute import njit
from trajload.types import BoolArray, Int64Array

__all__ = ["BlockKinds", "BlockPlaces"]


@njit
def _episode_of_short(number_B: Any, first_block_E1: Any, first_whole_E1: Any, out_B: Any) -> None:
    # Short blocks before episode e: first_block_E1[e] - first_whole_E1[e], so no third table is kept for them.
    for i in range(number_B.size):
        low, high = np.int64(0), np.int64(first_block_E1.size - 1)
        while high - low > 1:
            middle = (low + high) >> 1
            if first_block_E1[middle] - first_whole_E1[middle] <= number_B[i]:
                low = middle
            else:
                high = middle
        out_B[i] = low


@dataclass(frozen=True, slots=True, eq=False)
class BlockPlaces:
    """Blocks, and what belongs to them."""

    block_B: Int64Array
    episode_B: Int64Array
    first_window_id_B: Int64Array
    size_B: Int64Array


class BlockKinds:
    """The blocks of `blocks` with `block_windows` windows, and those with fewer, each kind numbered by episode.

    An episode has at most one short block, its last. Holds one int64 per episode beside the block table's own.
    Immutable and thread-safe.
    """

    def __init__(self, blocks: BlockTable) -> None:
        self.blocks = blocks
        self._first_whole_E1 = np.zeros(len(blocks.first_E1), dtype=np.int64)
        num_whole_E = np.diff(blocks.first_E1)
        num_whole_E //= blocks.block_windows
        np.cumsum(num_whole_E, out=self._first_whole_E1[1:])

    @property
    def num_whole(self) -> int:
        return int(self._first_whole_E1[-1])

    @property
    def num_short(self) -> int:
        return self.blocks.num_blocks - self.num_whole

    @property
    def num_short_windows(self) -> int:
        """Windows of all short blocks."""
        return self.blocks.num_windows - self.num_whole * self.blocks.block_windows

    def short_sizes(self) -> Int64Array:
        """Return the windows of each short block; made anew by each call."""
        rest_E = np.diff(self.blocks.first_E1)
        rest_E %= self.blocks.block_windows
        return rest_E[rest_E > 0]

    def whole(self, number_B: Int64Array) -> BlockPlaces:
        """Return whole blocks by their numbers in [0, num_whole)."""
        episode_B = np.asarray(np.searchsorted(self._first_whole_E1, number_B, side="right"), dtype=np.int64) - 1
        rank_B = number_B - self._first_whole_E1[episode_B]
        whole = self.blocks.block_windows
        return BlockPlaces(
            block_B=self.blocks.first_block_E1[episode_B] + rank_B,
            episode_B=episode_B,
            first_window_id_B=self.blocks.first_E1[episode_B] + rank_B * whole,
            size_B=np.full(len(number_B), whole, dtype=np.int64),
        )

    def short(self, number_B: Int64Array) -> BlockPlaces:
        """Return short blocks by their numbers in [0, num_short)."""
        episode_B = np.empty(len(number_B), dtype=np.int64)
        _episode_of_short(number_B, self.blocks.first_block_E1, self._first_whole_E1, episode_B)
        stop_B = self.blocks.first_E1[episode_B + 1]
        size_B = (stop_B - self.blocks.first_E1[episode_B]) % self.blocks.block_windows
        return BlockPlaces(
            block_B=self.blocks.first_block_E1[episode_B + 1] - 1,
            episode_B=episode_B,
            first_window_id_B=stop_B - size_B,
            size_B=size_B,
        )

    def numbers(self, block_B: Int64Array, size_B: Int64Array) -> tuple[BoolArray, Int64Array]:
        """Return (is_short_B, number_B): the kind of blocks of these sizes, and the number in it."""
        is_short_B = size_B < self.blocks.block_windows
        episode_B = np.asarray(np.searchsorted(self.blocks.first_block_E1, block_B, side="right"), dtype=np.int64) - 1
        num_short_before_B = self.blocks.first_block_E1[episode_B] - self._first_whole_E1[episode_B]
        return is_short_B, np.where(is_short_B, num_short_before_B, block_B - num_short_before_B)
