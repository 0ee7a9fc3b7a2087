"""interleaved/3: lanes go on over the ends of epochs, where a block begins in one epoch and goes on in the next."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_path import load
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trajload.sampling.interleaved_3 import Interleaved3Order
from trajload.sampling.orders import Interleaved, Interleaved2, make_order
from trajload.sampling.windows import WindowTable
from trajload.spec import Window

DATA: dict[str, Any] = {
    "equal": [285] * 40,
    "ragged": np.random.default_rng(5).integers(5, 401, 150).tolist(),
    "whole": [64] * 100,
    "many-short": [17, 33, 50, 12] * 60,
}


DEFINITIONS = load(Path(__file__).parents[2] / "order" / "definitions.py")
"""The plain definitions that golden orders come from."""


def order_of(
    counts: Any, size: int = 16, block_windows: int = 16, lanes_per_row: int = 4, seed: int = 7
) -> Interleaved3Order:
    config = Interleaved(block_windows=block_windows, lanes_per_row=lanes_per_row)
    table = WindowTable(np.asarray(counts), Window(num_steps=1))
    order = make_order(config, table=table, seed=seed, global_batch_size=size)
    assert isinstance(order, Interleaved3Order)
    return order


@pytest.mark.parametrize("epoch", [0, 1, 5, 2**63 - 1])
@pytest.mark.parametrize(("data", "size"), [("equal", 16), ("ragged", 5), ("whole", 8), ("many-short", 3)])
def test_each_window_comes_once_an_epoch_and_its_offset_is_found(data: str, size: int, epoch: int) -> None:
    """Both ways, where blocks lie across the ends of epochs."""
    order = order_of(DATA[data], size)
    assert order.has_seams
    all_B = np.arange(order.num_windows)
    ids = order.window_ids(epoch, all_B)
    assert np.array_equal(np.sort(ids), all_B)
    assert np.array_equal(order.offsets(epoch, ids), all_B)


@given(
    counts=st.lists(st.integers(0, 90), min_size=5, max_size=60).filter(any),
    size=st.integers(1, 7),
    block_windows=st.integers(1, 9),
    lanes=st.integers(1, 5),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 2**40),
)
@settings(max_examples=40, deadline=None)
def test_order_is_the_one_written_out(
    counts: list[int], size: int, block_windows: int, lanes: int, seed: int, epoch: int
) -> None:
    """In plain Python, as directly as can be."""
    order = order_of(counts, size, block_windows, lanes, seed)
    assume(order.has_seams)
    case = {
        "windows_of_episodes": [[num, 1] for num in counts],
        "global_batch_size": size,
        "block_windows": block_windows,
        "lanes_per_row": lanes,
    }
    all_B = np.arange(order.num_windows)
    assert order.window_ids(epoch, all_B).tolist() == DEFINITIONS.interleaved_3(case, seed, epoch, all_B.tolist())


@pytest.mark.parametrize(("data", "size", "lanes"), [("equal", 16, 4), ("ragged", 5, 3), ("whole", 8, 2)])
def test_uses_begin_and_end_once_over_the_ends_of_epochs(data: str, size: int, lanes: int) -> None:
    """A use's windows follow each other in its lane: the first begins it, the last ends it, and all say how many there are."""
    order, num_epochs = order_of(DATA[data], size, lanes_per_row=lanes), 4
    all_B = np.arange(order.num_windows)
    open_uses: dict[int, list[Any]] = {}  # lane -> [name, windows seen, windows said]
    num_across = 0
    for epoch in range(num_epochs):
        uses, ids = order.block_uses(epoch, all_B), order.window_ids(epoch, all_B)
        assert np.array_equal(uses.block_B, order.blocks.block_of(ids)[0])
        assert np.array_equal(uses.lane_B, order.lane_of(epoch, all_B))
        row_B = (epoch * order.num_windows + all_B) % size
        assert np.array_equal(row_B, (order.first_row(epoch) + uses.lane_B) % size)
        names = zip(uses.use_epoch_B.tolist(), uses.lane_B.tolist(), uses.block_B.tolist(), strict=True)
        for name, said, begins, ends in zip(
            names, uses.use_size_B.tolist(), uses.begins_B.tolist(), uses.ends_B.tolist(), strict=True
        ):
            assert begins == (name[1] not in open_uses)
            use = open_uses.setdefault(name[1], [name, 0, said])
            num_across += use[1] > 0 and name[0] < epoch
            use[1] += 1
            assert use[0] == name and use[2] == said
            if ends:
                assert open_uses.pop(name[1])[1] == said
    assert len(open_uses) <= order.num_lanes
    assert num_across > (num_epochs - 1) * order.num_lanes


@pytest.mark.parametrize(("data", "size"), [("equal", 16), ("ragged", 6)])
def test_no_more_blocks_begin_at_the_start_of_an_epoch_than_elsewhere(data: str, size: int) -> None:
    """Over any 16 batches less than twice the mean, whether an epoch ends in them or not; interleaved/2 begins all lanes."""
    counts = DATA[data]
    order = order_of(counts, size)
    before = make_order(
        Interleaved2(), table=WindowTable(np.asarray(counts), Window(num_steps=1)), seed=7, global_batch_size=size
    )
    all_B = np.arange(order.num_windows)
    most = []
    for each in (order, before):
        begins_B = np.concatenate([each.block_uses(e, all_B).begins_B for e in range(5)])  # type: ignore[attr-defined]
        num_S = begins_B[: len(begins_B) // size * size].reshape(-1, size).sum(axis=1)[order.lanes_per_row :]
        most.append(np.convolve(num_S, np.ones(16), mode="valid").max() / (16 * num_S.mean()))
    assert most[0] < 2
    assert most[1] > 2 * most[0]


def test_epochs_cost_as_many_uses_as_before() -> None:
    """One more for each lane and a few for each row: what seams spare at the ends, their pieces take inside the epoch."""
    order = order_of(DATA["equal"])
    for epoch in range(1, 5):
        begins_B = order.block_uses(epoch, np.arange(order.num_windows)).begins_B
        assert begins_B.sum() <= order.blocks.num_blocks + order.num_lanes + 2 * order.global_batch_size
        block_P, _ = order.cut_parts(epoch)
        num_more = len(block_P) - len(np.unique(block_P)) - order.num_continued(epoch)
        assert begins_B.sum() == order.blocks.num_blocks + num_more


def test_seams_are_drawn_anew_each_epoch() -> None:
    """Few blocks lie across two ends of an epoch within four, and none across two neighbouring ones."""
    order = order_of(DATA["equal"])
    seams = []
    for epoch in range(1, 5):
        offset_B = np.arange(order.num_lanes)
        uses = order.block_uses(epoch, offset_B)
        seams.append(set(uses.block_B[uses.use_epoch_B < epoch].tolist()))
    assert all(len(seam) > 50 for seam in seams)
    assert all(not a & b for a, b in itertools.pairwise(seams))
    assert Counter(block for seam in seams for block in seam).most_common(1)[0][1] <= 2
    assert len(set.union(*seams)) > 0.7 * sum(len(seam) for seam in seams)


@pytest.mark.parametrize("counts", [[5] * 30, [100, 3], [40] * 20])
def test_small_data_are_read_as_before(counts: list[int]) -> None:
    """Where lanes hold too few blocks, or none is whole, the order is that of interleaved/2."""
    order = order_of(counts)
    before = make_order(
        Interleaved2(), table=WindowTable(np.asarray(counts), Window(num_steps=1)), seed=7, global_batch_size=16
    )
    all_B = np.arange(order.num_windows)
    assert not order.has_seams
    assert np.array_equal(order.window_ids(3, all_B), before.window_ids(3, all_B))
