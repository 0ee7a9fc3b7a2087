"""The parts that make a decoded block cheap: copies past the caches, planning without sorting, uses of several batches."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import trajload as tl
from trajload.pipeline.ahead import UsesAhead
from trajload.pipeline.block_copy import copy_windows
from trajload.pipeline.block_plan import _distinct
from trajload.pipeline.block_pool import BlockPool, State
from trajload.pipeline.stats import StageStats


@pytest.mark.parametrize(("row_bytes", "num_windows"), [(33, 5), (49_153, 9), (100_003, 8), (1 << 20, 1)])
@pytest.mark.parametrize("shift", [0, 1, 31, 32])
def test_copied_windows_equal_their_rows_and_nothing_else_is_written(
    row_bytes: int, num_windows: int, shift: int
) -> None:
    """Below and above the size that goes past the caches, for addresses that no vector fits."""
    rng = np.random.default_rng(row_bytes)
    block_RNW = rng.integers(0, 256, (num_windows, 12, row_bytes), dtype=np.uint8)
    place_RT = np.sort(rng.integers(0, 12, (num_windows, 7)), axis=1)
    out = np.full(num_windows * 7 * row_bytes + 64, 7, dtype=np.uint8)
    first = out.ctypes.data + shift
    to_R = first + np.arange(num_windows, dtype=np.int64) * 7 * row_bytes
    source_R = np.array([block.ctypes.data for block in block_RNW], dtype=np.int64)
    copy_windows(to_R, source_R, place_RT, row_bytes)
    wanted = np.concatenate([block[place_T].reshape(-1) for block, place_T in zip(block_RNW, place_RT, strict=True)])
    assert np.array_equal(out[shift : shift + len(wanted)], wanted)
    assert (out[:shift] == 7).all() and (out[shift + len(wanted) :] == 7).all()


@pytest.mark.parametrize("rows", [[[3, 4, 5], [4, 5, 6]], [[9, 9, 2]], [[0, 10**7], [5, 5]], [[]]])
def test_distinct_rows_are_what_unique_gives(rows: list[list[int]]) -> None:
    """Runs, gaps, repeats, rows far apart, and none."""
    rows_WT = np.array(rows, dtype=np.int64)
    rows_U, place_WT = _distinct(rows_WT)
    assert np.array_equal(rows_U, np.unique(rows_WT))
    assert np.array_equal(rows_U[place_WT], rows_WT) if rows_WT.size else place_WT.shape == rows_WT.shape


@pytest.mark.parametrize("num_epochs", [None, 3])
def test_uses_of_several_batches_at_once_are_those_of_each(demo_dataset: Path, num_epochs: int | None) -> None:
    """Across epoch ends, and to the padded end of a finite run."""
    order = tl.Interleaved(block_windows=8, lanes_per_row=2)
    window = tl.Window(num_steps=5)
    with tl.Loader(demo_dataset, window=window, global_batch_size=7, order=order, num_epochs=num_epochs) as loader:
        builder = loader._engine.builder
        ahead = UsesAhead(builder)
        for train_step in range(loader.num_train_steps or 60):
            refs, rows = ahead(train_step)
            uses = builder.sampler.block_uses(builder.sampler.refs(train_step))
            assert uses is not None and {f.name for f in fields(uses)} >= {"lane_B", "block_B", "ends_B"}
            assert refs.train_step == train_step
            assert [row[2:4] for row in rows] == list(zip(uses.lane_B.tolist(), uses.block_B.tolist(), strict=True))
            assert [row[7] for row in rows] == (uses.ends_B | refs.row_is_pad_B).tolist()


def test_wanted_blocks_come_by_their_next_use() -> None:
    """A block that is taken, or wanted again in another state, is not found where it was."""
    pool = BlockPool(0, StageStats(), 10, lambda block: None)
    blocks = [
        pool.use((0, 0, lane, 0), 0, 0, 4, position, is_last=False) for lane, position in ((0, 2), (1, 3), (2, 5))
    ]
    pool.use((0, 0, 2, 0), 0, 0, 4, 6, is_last=False)
    assert pool.first_wanted(State.NEW) is blocks[0]
    pool.begin(blocks[0], State.READING)
    assert pool.first_wanted(State.NEW) is blocks[1]
    pool.end(blocks[0], State.READ)
    assert pool.first_wanted(State.NEW) is blocks[1]
    assert pool.first_wanted(State.READ) is blocks[0]
    pool.begin(blocks[0], State.DECODING)
    assert pool.first_wanted(State.READ) is None
