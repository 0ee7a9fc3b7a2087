"""Slots: the sequence of all windows of an epoch in pieces of exactly `block_windows`, so that phases are arithmetic.

A whole block is a slot. Short blocks, put one after another in keyed order, are cut into slots too; neighbouring slots
of theirs stay together in runs, spread over the sequence, so that few short blocks are cut between places far apart.
Source: docs/decisions/0074-interleaved-2.md
"""

# Shapes: B windows or slots, S short blocks

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trajload.sampling.block_kinds import BlockKinds, BlockPlaces
from trajload.sampling.block_sums import GOLDEN
from trajload.sampling.deal import DealtOrder
from trajload.sampling.even_cuts import EvenCuts
from trajload.sampling.permute import KeyedPermutation, mix64
from trajload.types import BoolArray, Int64Array

__all__ = ["SlotLayout", "SlotPlaces", "SlotSequence"]

BLOCKS_PER_RUN = 128
"""Blocks of all kinds for each run of short ones: a run costs one cut block, so runs cut at most 0.8 % of all blocks."""
_CHUNK = 2**16


@dataclass(frozen=True, slots=True, eq=False)
class SlotPlaces:
    """What stands at some places of the sequence."""

    blocks: BlockPlaces
    rank_B: Int64Array
    """Which of the block's windows, by the keyed order inside it."""
    start_B: Int64Array
    """The block's windows follow each other in [start_B, stop_B) of the sequence, all of them unless it is cut."""
    stop_B: Int64Array


class SlotLayout:
    """Where runs of short slots stand among whole ones, up to what an epoch's keys decide. Immutable.

    The slots are cut into `num_runs` strata of equal make-up: in each at least one whole slot, and one run before the last
    of them, so that no two runs touch. Without whole blocks all is one run.
    """

    def __init__(self, kinds: BlockKinds) -> None:
        self.kinds = kinds
        self.slot_windows = kinds.blocks.block_windows
        num_short_slots = kinds.num_short_windows // self.slot_windows
        self.num_runs = max(1, min(kinds.num_whole, num_short_slots, kinds.blocks.num_blocks // BLOCKS_PER_RUN))
        self.whole = EvenCuts(kinds.num_whole, self.num_runs)
        self.short = EvenCuts(num_short_slots, self.num_runs)
        self.num_slots = kinds.num_whole + num_short_slots
        """Further windows, fewer than a slot and all of short blocks, stand behind the last slot."""

    def find(self, slot_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (run_B, rank_B): the stratum of each slot, and the place in it."""
        both = self.whole.length + self.short.length
        low, high = sorted((self.whole.num_longer, self.short.num_longer))
        stop_low = low * (both + 2)
        stop_high = stop_low + (high - low) * (both + 1)
        run_B = np.where(
            slot_B < stop_low,
            slot_B // (both + 2),
            np.where(
                slot_B < stop_high,
                low + (slot_B - stop_low) // (both + 1),
                high + (slot_B - stop_high) // max(both, 1),
            ),
        )
        return run_B, slot_B - self.start(run_B)

    def start(self, run_B: Int64Array) -> Int64Array:
        """Return the first slot of each stratum."""
        return self.whole.start(run_B) + self.short.start(run_B)


class SlotSequence:
    """The sequence of one epoch: index <-> (block, rank). Holds one int64 per short block; immutable, thread-safe."""

    def __init__(
        self,
        layout: SlotLayout,
        whole_keys: tuple[int, ...],
        short_keys: Sequence[tuple[int, ...]],
        run_key: int,
    ) -> None:
        """Permute.

        Args:
            layout: What all epochs share.
            whole_keys: Of the order of whole blocks.
            short_keys: Of the order of short blocks, `NUM_HANDS` times.
            run_key: Of the places of runs in their strata.
        """
        self._layout = layout
        self._run_key = run_key
        num_short = layout.kinds.num_short
        self._whole = KeyedPermutation(max(layout.kinds.num_whole, 1), whole_keys)
        self._short = DealtOrder(num_short, short_keys)
        # Where in the sequence of short blocks each of them starts.
        self._start_S1 = np.zeros(num_short + 1, dtype=np.int64)
        for low in range(0, num_short, _CHUNK):  # in chunks: with 10**7 episodes each temporary would be 80 MB
            place_C = np.arange(low, min(low + _CHUNK, num_short), dtype=np.int64)
            self._start_S1[low + 1 : low + 1 + len(place_C)] = layout.kinds.short_sizes(self._short.forward(place_C))
        np.cumsum(self._start_S1, out=self._start_S1)

    def find(self, index_B: Int64Array) -> SlotPlaces:
        """Return what stands at places in [0, num_windows), a flat array."""
        layout = self._layout
        slot_B, rank_B = np.divmod(index_B, layout.slot_windows)
        run_B, place_B = layout.find(slot_B)
        before_B, size_B = self._runs(run_B)
        # Windows behind the last slot belong to a run of their own.
        is_rest_B = slot_B >= layout.num_slots
        is_short_B = ((place_B >= before_B) & (place_B < before_B + size_B)) | is_rest_B

        out = [np.empty(len(index_B), dtype=np.int64) for _ in range(7)]
        at_B = np.flatnonzero(~is_short_B)
        number_B = layout.whole.start(run_B[at_B]) + place_B[at_B]
        number_B -= np.where(place_B[at_B] >= before_B[at_B], size_B[at_B], 0)
        first_B = index_B[at_B] - rank_B[at_B]
        blocks = layout.kinds.whole(self._whole.forward(number_B))
        _put(out, at_B, blocks, rank_B[at_B], first_B, first_B + layout.slot_windows)

        at_B = np.flatnonzero(is_short_B)
        if at_B.size:
            self._find_short(out, at_B, index_B[at_B], is_rest_B[at_B], run_B[at_B], place_B[at_B] - before_B[at_B])
        return SlotPlaces(BlockPlaces(*out[:4]), *out[4:])

    def _find_short(
        self,
        out: list[Int64Array],
        at_B: Int64Array,
        index_B: Int64Array,
        is_rest_B: BoolArray,
        run_B: Int64Array,
        slot_B: Int64Array,
    ) -> None:
        layout, width = self._layout, self._layout.slot_windows
        run_start_B = np.where(is_rest_B, layout.short.total, layout.short.start(run_B)) * width
        is_last_B = is_rest_B if layout.kinds.num_whole else True  # without whole slots the rest touches the only run
        run_stop_B = np.where(is_last_B, layout.kinds.num_short_windows, run_start_B + layout.short.size(run_B) * width)
        # Places in the sequence of short blocks alone.
        short_B = run_start_B + np.where(is_rest_B, 0, slot_B) * width + index_B % width
        if not layout.kinds.num_whole:
            run_start_B = np.zeros_like(short_B)
        place_B = np.asarray(np.searchsorted(self._start_S1, short_B, side="right"), dtype=np.int64) - 1
        blocks = layout.kinds.short(self._short.forward(place_B))
        start_B = np.maximum(self._start_S1[place_B], run_start_B)
        stop_B = np.minimum(self._start_S1[place_B + 1], run_stop_B)
        rank_B = short_B - self._start_S1[place_B]
        _put(out, at_B, blocks, rank_B, index_B + start_B - short_B, index_B + stop_B - short_B)

    def index(self, block_B: Int64Array, size_B: Int64Array, rank_B: Int64Array) -> Int64Array:
        """Return where each rank of each block stands; the inverse of `find`. Flat arrays."""
        layout = self._layout
        is_short_B, number_B = layout.kinds.numbers(block_B, size_B)
        out_B = np.empty(len(block_B), dtype=np.int64)
        at_B = np.flatnonzero(~is_short_B)
        run_B, place_B = layout.whole.find(self._whole.inverse(number_B[at_B]))
        before_B, length_B = self._runs(run_B)
        slot_B = layout.start(run_B) + place_B + np.where(place_B >= before_B, length_B, 0)
        out_B[at_B] = slot_B * layout.slot_windows + rank_B[at_B]
        at_B = np.flatnonzero(is_short_B)
        if at_B.size:
            out_B[at_B] = self._short_index(self._start_S1[self._short.inverse(number_B[at_B])] + rank_B[at_B])
        return out_B

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._start_S1.nbytes

    def run_edges(self) -> Int64Array:
        """Return the places on both sides of each cut that the ends of runs make in the sequence of short blocks."""
        if not self._layout.kinds.num_whole:
            return np.zeros(0, dtype=np.int64)
        run_B = np.arange(1, self._layout.num_runs + 1, dtype=np.int64)
        cut_B = self._layout.short.start(run_B) * self._layout.slot_windows
        cut_B = cut_B[(cut_B > 0) & (cut_B < self._layout.kinds.num_short_windows)]
        return self._short_index(np.concatenate([cut_B - 1, cut_B]))

    def _short_index(self, short_B: Int64Array) -> Int64Array:
        """Return where in the sequence each place of the sequence of short blocks alone stands."""
        layout = self._layout
        slot_B, rank_B = np.divmod(short_B, layout.slot_windows)
        run_B, place_B = layout.short.find(slot_B)
        is_rest_B = slot_B >= layout.short.total
        run_B = np.where(is_rest_B, 0, run_B)
        slot_B = np.where(is_rest_B, layout.num_slots, layout.start(run_B) + self._runs(run_B)[0] + place_B)
        return slot_B * layout.slot_windows + rank_B

    def _runs(self, run_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (before_B, size_B): whole slots before the run in its stratum, and short slots of the run."""
        run_U = run_B.astype(np.uint64)
        num_places_U = np.maximum(self._layout.whole.size(run_B), 1).astype(np.uint64)
        draw_U = mix64(np.uint64(self._run_key) + run_U * np.uint64(GOLDEN))
        return (draw_U % num_places_U).astype(np.int64), self._layout.short.size(run_B)


def _put(
    out: list[Int64Array],
    at_B: Int64Array,
    blocks: BlockPlaces,
    rank_B: Int64Array,
    start_B: Int64Array,
    stop_B: Int64Array,
) -> None:
    values = (blocks.block_B, blocks.episode_B, blocks.first_window_id_B, blocks.size_B, rank_B, start_B, stop_B)
    for target_B, value_B in zip(out, values, strict=True):
        target_B[at_B] = value_B
