"""Whole and short blocks numbered apart: `interleaved/2` permutes each kind by itself."""

# Shapes: E episodes, B blocks or windows, S short blocks

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.sampling.blocks import BlockTable
from trajload.types import BoolArray, Int64Array

__all__ = ["BlockKinds", "BlockPlaces"]


@dataclass(frozen=True, slots=True, eq=False)
class BlockPlaces:
    """Blocks, and what belongs to them."""

    block_B: Int64Array
    episode_B: Int64Array
    first_window_id_B: Int64Array
    size_B: Int64Array


class BlockKinds:
    """The blocks of `blocks` with `block_windows` windows, and those with fewer: each kind has numbers of its own.

    Whole blocks are numbered by episode, short ones by size, then by episode, of which each has at most one, its last.
    Holds 16 bytes per episode (below 2**31 episodes) beside the block table's own. Immutable and thread-safe.
    """

    def __init__(self, blocks: BlockTable) -> None:
        self.blocks = blocks
        self._first_whole_E1 = np.zeros(len(blocks.first_E1), dtype=np.int64)
        num_whole_E = np.diff(blocks.first_E1)
        num_whole_E //= blocks.block_windows
        np.cumsum(num_whole_E, out=self._first_whole_E1[1:])
        dtype = np.int32 if len(num_whole_E) < 2**31 else np.int64
        rest_E = np.diff(blocks.first_E1)
        rest_E %= blocks.block_windows
        episode_S = np.flatnonzero(rest_E).astype(dtype)
        # Small integers are sorted by radix, in linear time.
        small = np.uint16 if blocks.block_windows <= 2**16 else np.int32
        self._episode_S = episode_S[np.argsort(rest_E[episode_S].astype(small), kind="stable")]
        self._short_number_E = np.zeros(len(rest_E), dtype=dtype)
        self._short_number_E[self._episode_S] = np.arange(len(episode_S), dtype=dtype)

    @property
    def num_whole(self) -> int:
        return int(self._first_whole_E1[-1])

    @property
    def num_short(self) -> int:
        return len(self._episode_S)

    @property
    def num_short_windows(self) -> int:
        """Windows of all short blocks."""
        return self.blocks.num_windows - self.num_whole * self.blocks.block_windows

    def short_sizes(self, number_B: Int64Array) -> Int64Array:
        """Return the windows of short blocks by their numbers."""
        episode_B = self._episode_S[number_B]
        size_B = self.blocks.first_E1[episode_B + 1] - self.blocks.first_E1[episode_B]
        return size_B % self.blocks.block_windows

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
        episode_B = self._episode_S[number_B].astype(np.int64)
        stop_B, size_B = self.blocks.first_E1[episode_B + 1], self.short_sizes(number_B)
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
        rank_B = block_B - self.blocks.first_block_E1[episode_B]
        return is_short_B, np.where(
            is_short_B, self._short_number_E[episode_B], self._first_whole_E1[episode_B] + rank_B
        )
