"""The parts of interleaved/2: even cuts, kinds of blocks, the sequence of slots, and lanes that keep to their row."""

from __future__ import annotations

from math import gcd
from pathlib import Path

import numpy as np
import pytest
from by_path import load
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.sampling.block_kinds import BlockKinds
from trajload.sampling.blocks import BlockTable
from trajload.sampling.deal import DealtOrder
from trajload.sampling.even_cuts import EvenCuts
from trajload.sampling.order_base import round_keys
from trajload.sampling.orders import Interleaved2, make_order
from trajload.sampling.row_lanes import RowLanes, spread_multiplier
from trajload.sampling.slots import SlotLayout, SlotSequence
from trajload.sampling.windows import WindowTable
from trajload.spec import Window

COUNTS = st.one_of(
    st.lists(st.integers(0, 70), min_size=1, max_size=12),
    st.lists(st.integers(0, 30), min_size=200, max_size=400),  # enough blocks for several runs of short ones
).filter(any)


DEFINITIONS = load(Path(__file__).parents[2] / "order" / "definitions.py")
"""The plain definitions that golden orders come from."""


def kinds_of(counts: list[int], block_windows: int) -> BlockKinds:
    return BlockKinds(BlockTable(WindowTable(np.asarray(counts), Window(num_steps=1)).first_E1, block_windows))


def sequence_of(layout: SlotLayout, seed: int = 3, epoch: int = 2) -> SlotSequence:
    whole, _, runs, *hands = (round_keys(seed, "interleaved/2", epoch, part=part) for part in range(11))
    return SlotSequence(layout, whole, hands, runs[0])


@given(total=st.integers(0, 300), num_parts=st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_parts_are_as_equal_as_can_be_and_found_again(total: int, num_parts: int) -> None:
    """Sizes differ by at most one, and every place is found in its part."""
    cuts = EvenCuts(total, num_parts)
    part_B = np.arange(num_parts)
    sizes = cuts.size(part_B)
    assert sizes.sum() == total and np.ptp(sizes) <= 1
    assert cuts.start(np.arange(num_parts + 1)).tolist() == [0, *np.cumsum(sizes).tolist()]
    found, rank = cuts.find(np.arange(total))
    assert found.tolist() == np.repeat(part_B, sizes).tolist()
    assert (cuts.start(found) + rank).tolist() == list(range(total))


@given(counts=COUNTS, block_windows=st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_both_kinds_of_blocks_are_numbered(counts: list[int], block_windows: int) -> None:
    """Whole ones by episode, short ones by size, as in the blocks written out; and the way back."""
    kinds = kinds_of(counts, block_windows)
    all_B = np.arange(kinds.blocks.num_blocks)
    episode_B, first_B, size_B = kinds.blocks.locate(all_B)
    whole_B = np.flatnonzero(size_B == block_windows)
    short_B = np.array(sorted(np.flatnonzero(size_B < block_windows), key=lambda b: size_B[b]), dtype=np.int64)
    assert (kinds.num_whole, kinds.num_short) == (len(whole_B), len(short_B))
    assert kinds.num_short_windows == size_B[short_B].sum()
    for found, block_B in (
        (kinds.whole(np.arange(kinds.num_whole)), whole_B),
        (kinds.short(np.arange(kinds.num_short)), short_B),
    ):
        assert found.block_B.tolist() == block_B.tolist()
        assert found.episode_B.tolist() == episode_B[block_B].tolist()
        assert found.first_window_id_B.tolist() == first_B[block_B].tolist()
        assert found.size_B.tolist() == size_B[block_B].tolist()
    got_B, number_B = kinds.numbers(all_B, size_B)
    assert np.array_equal(got_B, size_B < block_windows)
    assert number_B[short_B].tolist() == list(range(kinds.num_short))
    assert number_B[whole_B].tolist() == list(range(kinds.num_whole))


@given(num=st.integers(0, 200), seed=st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_small_and_large_blocks_are_dealt_in_turn(num: int, seed: int) -> None:
    """Each 8 neighbouring places hold one number of each eighth; the way back is right."""
    order = DealtOrder(num, [round_keys(seed, "test", 0, part=part) for part in range(8)])
    numbers = order.forward(np.arange(num))
    assert np.sort(numbers).tolist() == list(range(num))
    assert order.inverse(numbers).tolist() == list(range(num))
    for low in range(0, num - 7, 8):
        assert np.all(np.abs(np.sort(numbers[low : low + 8]) - (np.arange(8) + 0.5) * num / 8) <= num / 16 + 1)


@given(counts=COUNTS, block_windows=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_sequence_of_slots_is_the_one_written_out(counts: list[int], block_windows: int, seed: int) -> None:
    """Blocks, ranks, the extent of each part of a block, and the way back."""
    layout = SlotLayout(kinds_of(counts, block_windows))
    sequence = sequence_of(layout, seed)
    case = {"windows_of_episodes": [[num, 1] for num in counts], "block_windows": block_windows}
    expected = DEFINITIONS.slots_2(case, seed, 2)
    all_B = np.arange(len(expected))
    found = sequence.find(all_B)
    assert list(zip(found.blocks.block_B.tolist(), found.rank_B.tolist(), strict=True)) == expected
    assert np.array_equal(sequence.index(found.blocks.block_B, found.blocks.size_B, found.rank_B), all_B)
    changes = np.r_[True, found.blocks.block_B[1:] != found.blocks.block_B[:-1]]
    starts = np.flatnonzero(changes)
    lengths = np.diff(np.r_[starts, len(all_B)])
    assert found.start_B.tolist() == np.repeat(starts, lengths).tolist()
    assert found.stop_B.tolist() == np.repeat(starts + lengths, lengths).tolist()
    # Only ends of runs cut blocks, and whole blocks are slots.
    assert len(starts) - layout.kinds.blocks.num_blocks <= layout.num_runs
    is_whole_B = found.blocks.size_B == block_windows
    assert (found.start_B[is_whole_B] % block_windows == 0).all()


def test_runs_of_short_blocks_cut_few_and_are_spread() -> None:
    """At most one block in 128 is cut, and every eighth of the sequence has its share of short ones."""
    counts = [100, 37, 250, 5] * 500
    layout = SlotLayout(kinds_of(counts, 16))
    found = sequence_of(layout).find(np.arange(sum(counts)))
    num_parts = 1 + int((np.diff(found.blocks.block_B) != 0).sum())
    assert 0 < num_parts - layout.kinds.blocks.num_blocks <= layout.kinds.blocks.num_blocks / 128
    is_short = found.blocks.size_B < 16
    shares = [part.mean() for part in np.array_split(is_short, 8)]
    assert shares == pytest.approx([is_short.mean()] * 8, rel=0.15)


@given(
    num_windows=st.integers(1, 3000),
    size=st.integers(1, 40),
    lanes=st.integers(1, 5),
    slot_windows=st.integers(1, 24),
)
@settings(max_examples=300, deadline=None)
def test_lanes_read_what_is_written_out(num_windows: int, size: int, lanes: int, slot_windows: int) -> None:
    """Every place once, lanes as in the definition, stretches without a jump, and the way back."""
    subject = RowLanes(num_windows, size, lanes, slot_windows)
    expected = DEFINITIONS.lanes_2(list(range(num_windows)), size, lanes, slot_windows)
    all_B = np.arange(num_windows)
    got = subject.places(all_B)
    assert np.sort(got.index_B).tolist() == all_B.tolist()
    assert np.array_equal(subject.offset(got.index_B), all_B)
    edges = []
    for lane, read in enumerate(expected):
        mine_B = got.lane_B == lane
        assert got.index_B[mine_B].tolist() == read
        if read:
            cuts = np.flatnonzero(np.diff(read) != 1) + 1
            starts = np.r_[0, cuts]
            lengths = np.diff(np.r_[starts, len(read)])
            first = np.asarray(read)[starts]
            assert got.start_B[mine_B].tolist() == np.repeat(first, lengths).tolist()
            assert got.stop_B[mine_B].tolist() == np.repeat(first + lengths, lengths).tolist()
            edges += [*first, *(first + lengths - 1)]
    assert np.sort(subject.offset(np.unique(edges))).tolist() == np.sort(subject.edge_offsets()).tolist()


@given(size=st.integers(1, 80), lanes=st.integers(1, 5), slot_windows=st.integers(1, 16), more=st.integers(0, 5000))
@settings(max_examples=100, deadline=None)
def test_every_batch_begins_as_many_slots(size: int, lanes: int, slot_windows: int, more: int) -> None:
    """G / W of them, rounded down or up, until rows turn near the end of the epoch; with G < W at most one or two."""
    subject = RowLanes(12 * slot_windows * size * lanes + more, size, lanes, slot_windows)
    # Rows turn while they read their last 8 slots, in lanes of more or less than that.
    num_batches = (subject.num_windows // size // lanes - 8 * slot_windows) * lanes
    index_B = subject.places(np.arange(num_batches * size)).index_B
    begins_S = (index_B % slot_windows == 0).reshape(num_batches, size).sum(axis=1)
    if size >= slot_windows:
        assert begins_S.min() >= size // slot_windows and begins_S.max() <= -(-size // slot_windows)
    else:
        assert begins_S.max() <= 2
        # All lanes once in the time of a slot.
        assert begins_S[: slot_windows * lanes].sum() == size * lanes


@pytest.mark.parametrize("num", [1, 2, 3, 7, 16, 32, 85, 256, 1000, 2**31])
def test_neighbouring_rows_are_spread(num: int) -> None:
    """Any n neighbouring rows lie at most 3 n-ths of the whole apart: a rank begins its blocks evenly too."""
    multiplier = spread_multiplier(num)
    assert gcd(multiplier, num) == 1
    for n in (4, 8, 16):
        if n <= num:
            at = np.sort((np.arange(n) + 5) * multiplier % num)
            gaps = np.diff(np.r_[at, at[0] + num])
            assert gaps.max() <= max(3 * num / n, 1)


def test_rows_share_no_block_in_one_batch_of_an_even_epoch() -> None:
    """The two parts of a slot cut between rows are read at different times."""
    table = WindowTable(np.full(40, 288), Window(num_steps=1))
    order = make_order(Interleaved2(lanes_per_row=4), table=table, seed=7, global_batch_size=20)
    num_batches = order.num_windows // 20
    blocks_SB = order.block_of(0, np.arange(num_batches * 20)).reshape(num_batches, 20)  # type: ignore[attr-defined]
    assert all(len(np.unique(block_B)) == 20 for block_B in blocks_SB)
