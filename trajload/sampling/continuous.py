"""continuous/1: row b of a batch continues row b of the batch before, for models that carry a state along.

An epoch takes a *tiling* of the windows: of each episode the windows 0, tile, 2 * tile, ... in its numbering, where
`tile` windows lie between one window and the next that does not overlap it. Episodes come in keyed order, one after
the other, and this sequence is cut into as many lanes as a batch has rows (`lanes.py`), so a row runs through its
episodes from start to end. A lane may begin inside an episode: once an epoch and row at most.
Source: docs/decisions/0045-continuous-order.md
"""

# Shapes: B offsets or windows, E episodes

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.errors import WindowError
from trajload.sampling.lanes import Lanes
from trajload.sampling.order_base import EpochCache, OrderInputs, check_epoch, check_range, round_keys
from trajload.sampling.permute import KeyedPermutation
from trajload.types import BoolArray, Int64Array

__all__ = ["ContinuousOrder"]


@dataclass(frozen=True, slots=True, eq=False)
class _Epoch:
    permutation: KeyedPermutation
    first_E1: Int64Array
    """Where in the sequence the episode at each place begins; the total at the end."""


class ContinuousOrder:
    """See the module. Its `num_windows` is that of the tiling. Keeps O(episodes) for two epochs; thread-safe."""

    version = "continuous/1"

    def __init__(self, inputs: OrderInputs) -> None:
        """Count the tiling.

        Args:
            inputs: Windows of each episode, seed, global_batch_size (the number of lanes) and tile_windows.
        """
        self._first_E1, global_batch_size = inputs.layout(self.version)
        self.seed = inputs.seed
        self.tile_windows = inputs.tile_windows
        self._num_tiles_E = (np.diff(self._first_E1) + self.tile_windows - 1) // self.tile_windows
        self.num_windows = int(self._num_tiles_E.sum())
        self._num_all = inputs.num_windows
        self.lanes = Lanes(self.num_windows, global_batch_size)
        self._epochs: EpochCache[_Epoch] = EpochCache(self._make_epoch)

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        episode_B, tile_B = self._locate(epoch, check_range("offset", offset_B, self.num_windows))
        return self._first_E1[episode_B] + tile_B * self.tile_windows

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        """Return the offset at which each window comes.

        Raises:
            WindowError: A window that is not part of the tiling, hence comes in no epoch.
        """
        window_id_B = check_range("window id", window_id_B, self._num_all)
        tables = self._epochs.get(check_epoch(epoch))
        episode_B = np.asarray(np.searchsorted(self._first_E1, window_id_B, side="right"), dtype=np.int64) - 1
        tile_B, rest_B = np.divmod(window_id_B - self._first_E1[episode_B], self.tile_windows)
        if rest_B.any():
            bad = int(window_id_B[np.nonzero(rest_B)][0])
            raise WindowError(
                f"window id {bad} never comes in order {self.version!r}: expected every {self.tile_windows}th window of its episode."
            )
        return self.lanes.offset(tables.first_E1[tables.permutation.inverse(episode_B)] + tile_B)

    def continues(self, epoch: int, offset_B: Int64Array) -> BoolArray:
        """Return where the window continues, step by step, the one before it in its lane.

        False where an episode starts, and where a lane starts inside an episode: there a carried state must be reset.
        """
        offset_B = check_range("offset", offset_B, self.num_windows)
        return (self._locate(epoch, offset_B)[1] > 0) & (offset_B >= self.lanes.num_lanes)

    def _locate(self, epoch: int, offset_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (episode_B, tile_B) of offsets that exist."""
        tables = self._epochs.get(check_epoch(epoch))
        index_B = self.lanes.index(offset_B)
        # side="right": episodes without windows take no place in the sequence.
        place_B = np.asarray(np.searchsorted(tables.first_E1, index_B, side="right"), dtype=np.int64) - 1
        return tables.permutation.forward(place_B), index_B - tables.first_E1[place_B]

    def _make_epoch(self, epoch: int) -> _Epoch:
        num_episodes = len(self._num_tiles_E)
        permutation = KeyedPermutation(num_episodes, round_keys(self.seed, "continuous", epoch))
        first_E1 = np.zeros(num_episodes + 1, dtype=np.int64)
        np.cumsum(self._num_tiles_E[permutation.forward(np.arange(num_episodes, dtype=np.int64))], out=first_E1[1:])
        return _Epoch(permutation, first_E1)

    def __repr__(self) -> str:
        return f"ContinuousOrder({self.num_windows} windows, every {self.tile_windows}th of an episode)"
