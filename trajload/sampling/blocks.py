"""Blocks: runs of neighbouring window starts in one episode, which share decoded frames. Numbered in closed form."""

# Shapes: E episodes, B blocks or windows, S short blocks

from __future__ import annotations

import numpy as np

from trajload.checks import check_int
from trajload.errors import WindowError
from trajload.types import Int64Array

__all__ = ["MAX_BLOCK_WINDOWS", "BlockTable", "check_block_windows"]

MAX_BLOCK_WINDOWS = 2**20
"""A block is decoded and held as one; a million windows are far beyond any memory."""


def check_block_windows(block_windows: int) -> int:
    """Return `block_windows` if it is an int in [1, 2**20], else raise ConfigError."""
    return check_int("block_windows", block_windows, 1, MAX_BLOCK_WINDOWS + 1)


class BlockTable:
    """Each episode's windows cut into runs of `block_windows`; the last run of an episode may be shorter.

    Blocks are numbered by episode, then by place in it. Holds one int64 per episode beside the window table's own.
    Immutable and thread-safe.
    """

    def __init__(self, first_E1: Int64Array, block_windows: int) -> None:
        """Cut.

        Args:
            first_E1: Window ids of episode e are [first_E1[e], first_E1[e + 1]); from `WindowTable.first_E1`.
            block_windows: Windows of a whole block.
        """
        self.block_windows = check_block_windows(block_windows)
        self._first_E1 = first_E1
        self._first_block_E1 = np.zeros(len(first_E1), dtype=np.int64)
        num_blocks_E = np.diff(first_E1)
        num_blocks_E += self.block_windows - 1
        num_blocks_E //= self.block_windows
        np.cumsum(num_blocks_E, out=self._first_block_E1[1:])

    @property
    def num_blocks(self) -> int:
        return int(self._first_block_E1[-1])

    @property
    def num_windows(self) -> int:
        return int(self._first_E1[-1])

    @property
    def first_E1(self) -> Int64Array:
        """Window ids of episode e are [first_E1[e], first_E1[e + 1])."""
        return self._first_E1

    @property
    def first_block_E1(self) -> Int64Array:
        """Blocks of episode e are [first_block_E1[e], first_block_E1[e + 1])."""
        return self._first_block_E1

    def locate(self, block_B: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return (episode_B, first_window_id_B, size_B) of blocks, int64 of the same shape.

        Raises:
            WindowError: A block outside [0, num_blocks).
        """
        block_B = np.asarray(block_B, dtype=np.int64)
        if block_B.size and not 0 <= int(block_B.min()) <= int(block_B.max()) < self.num_blocks:
            bad = int(block_B.min()) if block_B.min() < 0 else int(block_B.max())
            raise WindowError(f"block {bad} does not exist: expected 0 <= block < {self.num_blocks}.")
        episode_B = np.asarray(np.searchsorted(self._first_block_E1, block_B, side="right"), dtype=np.int64) - 1
        first_B = self._first_E1[episode_B] + (block_B - self._first_block_E1[episode_B]) * self.block_windows
        return episode_B, first_B, np.minimum(self._first_E1[episode_B + 1] - first_B, self.block_windows)

    def block_of(self, window_id_B: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return (block_B, rank_B, size_B) of windows that exist: which block, the place in it, and its size."""
        window_id_B = np.asarray(window_id_B, dtype=np.int64)
        episode_B = np.asarray(np.searchsorted(self._first_E1, window_id_B, side="right"), dtype=np.int64) - 1
        number_B, rank_B = np.divmod(window_id_B - self._first_E1[episode_B], self.block_windows)
        size_B = np.minimum(self._first_E1[episode_B + 1] - window_id_B + rank_B, self.block_windows)
        return self._first_block_E1[episode_B] + number_B, rank_B, size_B

    def short_blocks(self) -> tuple[Int64Array, Int64Array]:
        """Return (block_S, lacking_S): the blocks with fewer than `block_windows` windows, and how many they lack."""
        rest_E = np.diff(self._first_E1) % self.block_windows
        episode_S = np.flatnonzero(rest_E)
        return self._first_block_E1[episode_S + 1] - 1, self.block_windows - rest_E[episode_S]

    def __repr__(self) -> str:
        return f"BlockTable({self.num_blocks} blocks of up to {self.block_windows} windows)"
