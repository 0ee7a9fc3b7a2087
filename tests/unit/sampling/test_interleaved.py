"""interleaved/1: blocks, lanes, rows; and the promises about mixing, load and decodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError, WindowError
from trajload.sampling.assign import rank_rows
from trajload.sampling.block_sums import BlockSums, permute_inside
from trajload.sampling.blocks import BlockTable
from trajload.sampling.interleaved import InterleavedOrder
from trajload.sampling.lanes import Lanes
from trajload.sampling.order_base import round_keys
from trajload.sampling.orders import Interleaved, Interleaved1, Interleaved2, make_order
from trajload.sampling.permute import reference_forward, reference_mix64
from trajload.sampling.quality import ranks_per_block
from trajload.sampling.sampler import Sampler
from trajload.sampling.windows import WindowTable
from trajload.spec import Window
from trajload.world import World

COUNTS = st.lists(st.integers(0, 70), min_size=1, max_size=12).filter(any)
VERSIONS = st.sampled_from([Interleaved1, Interleaved2, Interleaved])


def table_of(counts: list[int] | np.ndarray) -> WindowTable:
    return WindowTable(np.asarray(counts), Window(num_steps=1))


def interleaved_of(
    counts: list[int] | np.ndarray,
    size: int,
    *,
    block_windows: int = 16,
    lanes_per_row: int = 4,
    version: type[Interleaved] = Interleaved,
) -> InterleavedOrder:
    config = version(block_windows=block_windows, lanes_per_row=lanes_per_row)
    order = make_order(config, table=table_of(counts), seed=7, global_batch_size=size)
    assert isinstance(order, InterleavedOrder)
    return order


# ---- blocks ----


@given(counts=COUNTS, block_windows=st.integers(1, 40))
@settings(max_examples=200, deadline=None)
def test_blocks_are_runs_of_each_episodes_windows(counts: list[int], block_windows: int) -> None:
    """Numbering, location and the way back agree with the runs written out."""
    runs, first = [], 0
    for episode, num in enumerate(counts):
        runs += [(episode, first + k, min(block_windows, num - k)) for k in range(0, num, block_windows)]
        first += num
    blocks = BlockTable(table_of(counts).first_E1, block_windows)
    assert (blocks.num_blocks, blocks.num_windows) == (len(runs), first)
    assert list(zip(*(x.tolist() for x in blocks.locate(np.arange(len(runs)))), strict=True)) == runs
    of_window = [(b, w - start, size) for b, (_, start, size) in enumerate(runs) for w in range(start, start + size)]
    assert list(zip(*(x.tolist() for x in blocks.block_of(np.arange(first))), strict=True)) == of_window
    short = {b: block_windows - size for b, (_, _, size) in enumerate(runs) if size < block_windows}
    assert dict(zip(*(x.tolist() for x in blocks.short_blocks()), strict=True)) == short


def test_block_that_does_not_exist_is_named() -> None:
    """Blocks out of range are refused."""
    blocks = BlockTable(table_of([20, 3]).first_E1, 16)
    for bad in (-1, 3):
        with pytest.raises(WindowError, match=rf"block {bad} does not exist: expected 0 <= block < 3"):
            blocks.locate(np.array([0, bad]))
    with pytest.raises(ConfigError, match=r"block_windows=0 is invalid"):
        BlockTable(table_of([20]).first_E1, 0)


@given(
    num_blocks=st.integers(1, 300),
    block_windows=st.integers(1, 20),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_block_sums_equal_sums_written_out(num_blocks: int, block_windows: int, data: st.DataObject) -> None:
    """Start of every place, and place and rank of every index, for any set of short blocks."""
    lacking = data.draw(
        st.lists(st.integers(0, block_windows - 1), min_size=num_blocks, max_size=num_blocks), label="lacking"
    )
    short = [p for p in range(num_blocks) if lacking[p]]
    place_S = np.array(data.draw(st.permutations(short)), dtype=np.int64)
    sums = BlockSums(num_blocks, block_windows, place_S, np.array(lacking, dtype=np.int64)[place_S])
    sizes = block_windows - np.array(lacking)
    starts = np.cumsum(sizes) - sizes
    assert sums.start(np.arange(num_blocks)).tolist() == starts.tolist()
    place_B, rank_B = sums.find(np.arange(sizes.sum()))
    assert place_B.tolist() == np.repeat(np.arange(num_blocks), sizes).tolist()
    assert rank_B.tolist() == (np.arange(sizes.sum()) - np.repeat(starts, sizes)).tolist()


@given(size=st.integers(1, 200), block=st.integers(0, 2**50), seed=st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_windows_inside_a_block_come_in_the_order_of_the_definition(size: int, block: int, seed: int) -> None:
    """The compiled bijection equals the plain one, both ways."""
    keys = round_keys(seed, "interleaved", 3, part=1)
    number = np.arange(size)
    args = (np.full(size, size), np.full(size, block), np.array(keys, dtype=np.uint64))
    got = permute_inside(number, *args, is_inverse=False)
    plain = tuple(reference_mix64(key + block * 0x9E3779B97F4A7C15) for key in keys)
    assert got.tolist() == [reference_forward(i, size, plain) for i in range(size)]
    assert permute_inside(got, *args, is_inverse=True).tolist() == number.tolist()


@pytest.mark.parametrize("size", [3, 5, 16])
def test_windows_inside_blocks_are_shuffled_fairly(size: int) -> None:
    """Over 60,000 blocks of an epoch every pair of first two windows comes equally often."""
    keys = np.array(round_keys(1, "interleaved", 0, part=1), dtype=np.uint64)
    num = 60_000
    first, second = (
        permute_inside(np.full(num, rank), np.full(num, size), np.arange(num), keys, is_inverse=False)
        for rank in (0, 1)
    )
    counts = np.bincount(first * size + second, minlength=size * size).reshape(size, size)
    assert (np.diag(counts) == 0).all()
    pairs = counts[~np.eye(size, dtype=bool)]
    expected = num / len(pairs)
    chi2, df = float(((pairs - expected) ** 2 / expected).sum()), len(pairs) - 1
    assert abs(chi2 - df) < 6 * np.sqrt(2 * df)


# ---- lanes ----


@given(num_windows=st.integers(1, 400), num_lanes=st.integers(1, 450))
@settings(max_examples=300, deadline=None)
def test_lanes_are_read_across_what_was_written_along(num_windows: int, num_lanes: int) -> None:
    """The sequence in lanes as lists, read column by column, is `index`; `offset` is the way back."""
    length, longer = divmod(num_windows, num_lanes)
    lanes, at = [], 0
    for lane in range(num_lanes):
        lanes.append(list(range(at, at + length + (lane < longer))))
        at += len(lanes[-1])
    columns = [lane[c] for c in range(length + 1) for lane in lanes if c < len(lane)]
    subject = Lanes(num_windows, num_lanes)
    all_B = np.arange(num_windows)
    assert subject.index(all_B).tolist() == columns
    assert subject.offset(subject.index(all_B)).tolist() == all_B.tolist()
    start, stop = subject.bounds(np.arange(num_lanes))
    assert [(a, b) for a, b in zip(start, stop, strict=True) if a < b] == [(x[0], x[-1] + 1) for x in lanes if x]


@pytest.mark.parametrize(
    ("counts", "size", "lanes_per_row", "expected"),
    [
        ([160] * 10, 10, 4, 4),
        ([160] * 10, 10, 50, 10),
        ([160] * 10, 30, 4, 3),
        ([160] * 10, 101, 4, 1),
        ([3], 64, 4, 1),
    ],
)
def test_lanes_are_lowered_on_small_data_until_each_holds_a_block(
    counts: list[int], size: int, lanes_per_row: int, expected: int
) -> None:
    """K is at most blocks / batch size, and at least 1, so that lanes stay a multiple of the batch."""
    order = interleaved_of(counts, size, lanes_per_row=lanes_per_row)
    assert (order.lanes_per_row, order.num_lanes) == (expected, expected * size)


@pytest.mark.parametrize("version", [Interleaved1, Interleaved2, Interleaved])
def test_a_lane_stays_on_one_row_for_a_whole_epoch(version: type[Interleaved]) -> None:
    """So a contiguous range of rows owns whole lanes, in epochs that begin inside a batch too."""
    order = interleaved_of([50, 77, 31], 4, block_windows=4, version=version)
    assert order.num_windows % 4 != 0
    for epoch in (0, 1, 7):
        offset_B = np.arange(order.num_windows)
        row_B = (epoch * order.num_windows + offset_B) % 4
        lane_B = order.lane_of(epoch, offset_B)
        assert all(len(np.unique(row_B[lane_B == lane])) == 1 for lane in range(order.num_lanes))


# ---- uses of blocks ----


@given(
    counts=COUNTS,
    size=st.integers(1, 24),
    block_windows=st.integers(1, 20),
    lanes=st.integers(1, 4),
    epoch=st.integers(0, 9),
    version=st.sampled_from([Interleaved1, Interleaved2]),
)
@settings(max_examples=300, deadline=None)
def test_uses_of_blocks_begin_and_end_once_around_all_their_windows(
    counts: list[int], size: int, block_windows: int, lanes: int, epoch: int, version: type[Interleaved]
) -> None:
    """In each lane a use's windows follow each other; the first begins it, the last ends it, and it tells how many.

    `test_seams.py` says the same of uses that go on over the end of an epoch.
    """
    order = interleaved_of(counts, size, block_windows=block_windows, lanes_per_row=lanes, version=version)
    offset_B = np.arange(order.num_windows)
    uses, ids = order.block_uses(epoch, offset_B), order.window_ids(epoch, offset_B)
    assert np.array_equal(uses.block_B, order.blocks.block_of(ids)[0])
    assert np.array_equal(uses.block_B, order.block_of(epoch, offset_B))
    assert np.array_equal(uses.lane_B, order.lane_of(epoch, offset_B))
    assert ((uses.first_window_id_B <= ids) & (ids < uses.first_window_id_B + uses.size_B)).all()
    found = []
    for lane in range(order.num_lanes):
        in_lane = np.flatnonzero(uses.lane_B == lane)
        block = uses.block_B[in_lane]
        changes = np.r_[True, block[1:] != block[:-1]] if len(block) else np.zeros(0, dtype=bool)
        assert np.array_equal(uses.begins_B[in_lane], changes)
        assert np.array_equal(uses.ends_B[in_lane], np.r_[changes[1:], True] if len(block) else changes)
        lengths = np.diff(np.r_[np.flatnonzero(changes), len(block)])
        assert np.array_equal(uses.use_size_B[in_lane], np.repeat(lengths, lengths))
        found += [(int(b), lane) for b in block[changes]]
    blocks = [b for b, _ in found]
    assert len(set(blocks)) == order.blocks.num_blocks
    several = sorted((b, lane) for b, lane in found if blocks.count(b) > 1)
    assert sorted(zip(*(x.tolist() for x in order.cut_parts(epoch)), strict=True)) == several


@given(counts=COUNTS, size=st.integers(2, 12), world_size=st.integers(2, 5), epoch=st.integers(0, 3), version=VERSIONS)
@settings(max_examples=200, deadline=None)
def test_ranks_per_block_equals_counting(
    counts: list[int], size: int, world_size: int, epoch: int, version: type[Interleaved]
) -> None:
    """The score read off the cuts is that of every window of the epoch."""
    size = max(size, world_size)
    order = interleaved_of(counts, size, block_windows=6, lanes_per_row=3, version=version)
    rank_of_row = np.concatenate(
        [
            np.full(rows.stop - rows.start, r)
            for r in range(world_size)
            for rows in [rank_rows(size, World(rank=r, world_size=world_size))]
        ]
    )
    offset_B = np.arange(order.num_windows)
    rank_B = rank_of_row[(epoch * order.num_windows + offset_B) % size]
    pairs = set(zip(order.block_of(epoch, offset_B).tolist(), rank_B.tolist(), strict=True))
    got = ranks_per_block(order, size, world_size, epoch=epoch)
    assert got == pytest.approx(len(pairs) / order.blocks.num_blocks)


def test_sampler_tells_uses_of_blocks_of_a_batch_across_an_epochs_end() -> None:
    """Rows before the end belong to lanes of one epoch, rows after it to lanes of the next, which all begin."""
    sampler = Sampler(table_of([50, 77, 30]), order=Interleaved(block_windows=4), seed=3, global_batch_size=8)
    refs = sampler.refs(157 // 8)
    uses = sampler.block_uses(refs)
    assert uses is not None
    assert np.array_equal(uses.episode_B, refs.episode_B)
    is_next = refs.epoch_B == 1
    assert is_next.sum() == 3 and uses.begins_B[is_next].all() and uses.lane_B[is_next].tolist() == [0, 1, 2]
    shuffled = Sampler(table_of([50]), order="shuffled", seed=3, global_batch_size=8)
    assert shuffled.block_uses(shuffled.refs(0)) is None


def test_padding_rows_of_a_finite_run_begin_and_end_no_use() -> None:
    """They repeat the last window, whose use has its own row."""
    sampler = Sampler(table_of([21]), order=Interleaved(block_windows=4), seed=3, global_batch_size=4, num_epochs=1)
    uses = sampler.block_uses(sampler.refs(5))
    assert uses is not None
    assert not uses.begins_B[1:].any() and not uses.ends_B[1:].any()
