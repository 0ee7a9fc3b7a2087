"""The orders over episodes and blocks through the whole loader: iteration, workers, ranks, resume equal `batch_at`."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import trajload as tl
from trajload.errors import ConfigError, ResumeError

NUM_BATCHES = 10
STREAMS = ["cam_front", "proprioception", "action", "language"]
ORDERS = {
    "interleaved": "interleaved",
    "interleaved small": tl.Interleaved(block_windows=5, lanes_per_row=2),
    "continuous": "continuous",
    "weighted": tl.Weighted(episode_weights=lambda info: info.num_steps),
}


def loader_of(dataset: tl.Dataset, order: Any, num_workers: int = 0, **more: Any) -> tl.Loader:
    arguments = {"global_batch_size": 6, "seed": 3, "rank": 0, "world_size": 1, "streams": STREAMS, **more}
    return tl.Loader(dataset, window=tl.Window(num_steps=5), order=order, num_workers=num_workers, **arguments)


@pytest.fixture(scope="module")
def oracle(dataset: tl.Dataset) -> dict[str, list[str]]:
    out = {}
    for name, order in ORDERS.items():
        with loader_of(dataset, order) as loader:
            out[name] = [loader.batch_at(k).digest() for k in range(NUM_BATCHES)]
    return out


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_iteration_and_resume_equal_the_oracle(
    dataset: tl.Dataset, oracle: dict[str, list[str]], name: str, num_workers: int
) -> None:
    """Batches by iteration are those of `batch_at`, before and after a resume through JSON with other workers."""
    with loader_of(dataset, ORDERS[name], num_workers) as loader:
        got = [batch.digest() for batch in itertools.islice(loader, 4)]
        state = json.dumps(loader.state_dict())
    assert len(state) < 4096
    with loader_of(dataset, ORDERS[name], 2 - num_workers) as loader:
        loader.load_state_dict(json.loads(state))
        got += [batch.digest() for batch in itertools.islice(loader, NUM_BATCHES - 4)]
    assert got == oracle[name]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_hold_the_rows_of_the_global_batch(dataset: tl.Dataset, name: str, world_size: int) -> None:
    """Whatever the number of ranks."""
    with loader_of(dataset, ORDERS[name]) as loader:
        expected = loader.batch_at(31).refs
    rows: list[Any] = []
    for rank in range(world_size):
        with loader_of(dataset, ORDERS[name], rank=rank, world_size=world_size) as loader:
            rows += loader.batch_at(31).refs
    assert tuple(rows) == expected


def test_continuous_rows_go_on_step_by_step_through_the_loader(dataset: tl.Dataset) -> None:
    """`step_index` of a row counts on from batch to batch, and `is_first` stands where an episode starts."""
    carried = 0
    with loader_of(dataset, "continuous", num_workers=2, num_epochs=1, streams=["action"]) as loader:
        before = None
        for batch in loader:
            if before is not None:
                same = batch["episode_index"] == before["episode_index"]
                goes_on = batch["step_index"][:, 0] == before["step_index"][:, -1] + 1
                starts = batch["is_first"][:, 0]
                assert ((same & goes_on) | starts | batch["row_is_pad"]).all()
                carried += int((same & goes_on).sum())
            before = batch
    assert carried > 12


def test_a_state_names_a_changed_parameter_of_its_order(dataset: tl.Dataset) -> None:
    """Another block size, other weights or other episodes are other batches: refused by name."""
    with loader_of(dataset, tl.Interleaved(block_windows=5), episodes=[0, 2]) as loader:
        state = loader.state_dict()
    for order, episodes, message in (
        (tl.Interleaved(block_windows=6), [0, 2], r"order.block_windows: saved 5, here 6"),
        ("shuffled", [0, 2], r"order: saved \{.*, here 'shuffled/1'"),
        (tl.Interleaved(block_windows=5), [1, 2], r"episodes.digest: saved"),
        (tl.Interleaved(block_windows=5), None, r"episodes: saved .*, here absent"),
    ):
        with loader_of(dataset, order, episodes=episodes) as loader, pytest.raises(ResumeError, match=message):
            loader.load_state_dict(state)


def test_chosen_episodes_are_all_that_comes_and_keep_their_numbers(dataset: tl.Dataset) -> None:
    """By number, by a split and by a function of metadata."""
    parts = tl.split(dataset, {"train": 0.5, "val": 0.5}, seed=2)
    choices: list[Any] = [[2, 0], lambda info: info.index != 1]
    choices += [numbers for numbers in parts.values() if len(numbers)]
    for episodes in choices:
        expected = {0, 2} if not hasattr(episodes, "tolist") else set(episodes.tolist())
        with loader_of(dataset, "interleaved", episodes=episodes, num_epochs=1, streams=["action"]) as loader:
            batches = [loader.batch_at(k) for k in range(len(loader))]
        assert {e for batch in batches for e in batch["episode_index"].tolist()} == expected
        keys = {ref.episode_key for batch in batches for ref in batch.refs}
        assert keys == {dataset.episode_key(e) for e in expected}
    with pytest.raises(ConfigError, match="episodes names 3"):
        loader_of(dataset, "shuffled", episodes=[3])
