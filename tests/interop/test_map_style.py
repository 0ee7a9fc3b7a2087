"""Datasets for a DataLoader of one's own: whole batches by train_step, or single rows joined there."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import trajload as tl
from trajload.errors import ConfigError, ResumeError
from trajload.interop.rows import join_rows
from trajload.interop.samplers import StepSampler
from trajload.interop.steps import TrainSteps
from trajload.rng import key_rng

# From 3.12 on Python warns of forks beside threads; workers build loaders of their own and use none of the parent's.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

Make = Callable[..., tl.Loader]


def assert_same(got: tl.Batch, want: tl.Batch) -> None:
    assert got.digest() == want.digest()
    assert list(got) == list(want)
    assert got.train_step == want.train_step
    assert got.refs == want.refs


@pytest.mark.parametrize("world_size", [1, 4])
def test_rows_joined_are_the_batch(make_loader: Make, world_size: int) -> None:
    """Byte for byte, on every rank: pictures, depth, signals, text, masks, refs."""
    for rank in range(world_size):
        with make_loader(rank=rank, world_size=world_size) as loader:
            dataset, batch_sampler, collate_fn = loader.as_map_dataset(steps_per_epoch=3)
            for train_step, batch in enumerate(
                DataLoader(dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, generator=torch.Generator())
            ):
                assert_same(batch, loader.batch_at(train_step))
            assert train_step == 2
            dataset.close()


def test_rows_of_ragged_streams_are_padded_to_the_longest(make_loader: Make, tmp_path: Path) -> None:
    """A place of one row may hold more values than that of another: zeros behind, and the mask says where."""
    spec = tl.StreamSpec(
        name="imu", modality=tl.Modality.PROPRIOCEPTION, encoding="npy", dtype="float32", shape=(2,), clock="clocked"
    )
    action = tl.StreamSpec(name="action", modality=tl.Modality.ACTION, encoding="npy", dtype="float32", shape=(1,))
    with tl.Writer(tmp_path / "data", streams=[spec, action], step_rate_hz=10) as writer:
        times_ns = np.cumsum(key_rng(1, "test").integers(5_000_000, 60_000_000, 80))
        values = np.arange(160, dtype=np.float32).reshape(80, 2)
        writer.add_episode({"action": np.zeros((24, 1), np.float32), "imu": values}, timestamps_ns={"imu": times_ns})
    with make_loader(dataset=tmp_path / "data", streams={"imu": tl.Signal(align="interval")}) as loader:
        counts = loader.batch_at(0)["imu_count"]
        assert counts.min() != counts.max(), "the data do not show what is tested"
        rows = [loader.batch_at(0, rows=slice(b, b + 1)) for b in range(6)]
        assert_same(join_rows(rows), loader.batch_at(0))


@pytest.mark.parametrize("drop_last", [False, True])
def test_rows_of_a_finite_run(make_loader: Make, drop_last: bool) -> None:
    """Rows that fill up the last batch come out too; the dataset has a length."""
    options = {"num_epochs": 1, "drop_last": drop_last, "streams": ["action"], "global_batch_size": 7}
    with make_loader(**options) as loader:
        dataset, batch_sampler, collate_fn = loader.as_map_dataset()
        batches = [collate_fn([dataset[i] for i in items]) for items in batch_sampler]
        assert len(batches) == len(loader) == len(batch_sampler)
        assert len(dataset) == 7 * len(loader)
        for train_step, batch in enumerate(batches):
            assert_same(batch, loader.batch_at(train_step))
        dataset.close()


def test_rows_under_load_weights_and_transforms(make_loader: Make, demo_dataset: Path) -> None:
    """Ranks of uneven size, and windows that are augmented, are the same through rows."""
    dataset = tl.open(demo_dataset)
    costs = tl.CostTable({"action": [1000, 1, 1]}, dataset_digest=dataset.digest)
    options = {
        "dataset": dataset,
        "streams": ["action"],
        "load_weights": costs,
        "transforms": [tl.ActionNoise(std=0.1)],
    }
    for rank in range(2):
        with make_loader(**options, rank=rank, world_size=2) as loader:
            rows, batch_sampler, collate_fn = loader.as_map_dataset(steps_per_epoch=4)
            for train_step, items in enumerate(batch_sampler):
                assert_same(collate_fn([rows[i] for i in items]), loader.batch_at(train_step))
            rows.close()


def test_rows_of_several_train_steps_are_not_joined(make_loader: Make) -> None:
    """A batch is of one train_step."""
    with make_loader(streams=["action"]) as loader:
        dataset = loader.as_map_dataset().dataset
        with pytest.raises(ConfigError, match=r"rows of 2 train_steps cannot be joined"):
            join_rows([dataset[5], dataset[6]])
        dataset.close()


@pytest.mark.multiproc
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_train_steps_in_a_plain_dataloader(make_loader: Make, want: list[str], num_workers: int) -> None:
    """The parts of `as_dataloader`, put together by hand: pass after pass."""
    with make_loader() as loader:
        steps, sampler = TrainSteps(loader), StepSampler(loader, 4)
        dataloader = DataLoader(
            steps,
            batch_size=None,
            sampler=sampler,
            num_workers=num_workers,
            multiprocessing_context="fork" if num_workers else None,
            generator=torch.Generator(),
        )
        assert len(dataloader) == 4
        assert [batch.digest() for batch in dataloader] == want[:4]
        second = list(dataloader)
        assert [batch.digest() for batch in second] == want[4:8]
        assert [batch.train_step for batch in second] == [4, 5, 6, 7]
        sampler.set_epoch(0)
        assert next(iter(dataloader)).digest() == want[0]
        assert loader.train_step == 0
        steps.close()


def test_train_steps_are_indexed_and_not_iterated(make_loader: Make) -> None:
    """Iterating a run without end by number would never end; joining batches would make another batch."""
    with make_loader(streams=["action"]) as loader:
        steps = TrainSteps(loader)
        with pytest.raises(TypeError, match="indexed by train_step"):
            iter(steps)
        with pytest.raises(TypeError, match=r"no length.*StepSampler"):
            len(steps)
        with pytest.raises(ConfigError, match=r"2 train_steps are asked for at once, expected one"):
            next(iter(DataLoader(steps, batch_sampler=[[0, 1]], generator=torch.Generator())))
        steps.close()


def test_sampler_says_that_ranks_are_dealt_with(make_loader: Make) -> None:
    """Lightning and Ray Train put a DistributedSampler in place of any other."""
    with make_loader(rank=1, world_size=3) as loader:
        for sampler in (StepSampler(loader), loader.as_dataloader().sampler):
            assert isinstance(sampler, DistributedSampler)
            assert (sampler.rank, sampler.num_replicas) == (1, 3)


def test_sampler_state_of_another_loader_is_refused(make_loader: Make) -> None:
    """By the digests of dataset and configuration."""
    with make_loader() as loader, make_loader(seed=12) as other:
        state: dict[str, Any] = iter(StepSampler(loader, 4)).state_dict()
        with pytest.raises(ResumeError, match=r"the sampler's state does not fit this loader: config_digest differ"):
            iter(StepSampler(other, 4)).load_state_dict(state)


def test_rows_argument_gives_any_part_of_the_global_batch(make_loader: Make) -> None:
    """`batch_at(k, rows=...)` is how others' rows are looked at."""
    with make_loader(rank=1, world_size=2, streams=["action"]) as loader, make_loader(streams=["action"]) as alone:
        assert loader.batch_at(2, rows=slice(0, 6)).digest() == alone.batch_at(2).digest()
        assert loader.batch_at(2, rows=slice(3, 6)).digest() == loader.batch_at(2).digest()
        for rows in (slice(3, 7), slice(-1, 2), slice(2, 2), slice(0, 6, 2), slice(None)):
            with pytest.raises(ConfigError, match=r"rows=slice.* is invalid: expected .* of the 6 rows"):
                loader.batch_at(2, rows=rows)


def test_dataset_parts_survive_pickling(make_loader: Make) -> None:
    """As a worker gets them."""
    with make_loader() as loader:
        for dataset, item in ((TrainSteps(loader), 1), (loader.as_map_dataset().dataset, 6)):
            there = pickle.loads(pickle.dumps(dataset))
            assert there[item].digest() == dataset[item].digest()
            there.close()
            dataset.close()
