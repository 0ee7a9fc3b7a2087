"""Load weights move rows between ranks, and change nothing else."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.errors import ConfigError

COMMON: dict[str, Any] = {
    "global_batch_size": 24,
    "seed": 3,
    "streams": ["action", "cam_front"],
    "window": tl.Window(num_steps=4),
}


@pytest.fixture(scope="module")
def costs(dataset: tl.Dataset) -> tl.CostTable:
    """A third of the episodes costs twenty times what the others cost."""
    row_ns_E = [20_000 if e % 3 == 0 else 1_000 for e in range(dataset.num_episodes)]
    return tl.CostTable({"cam_front": row_ns_E}, dataset_digest=dataset.digest)


def ranks_of(dataset: tl.Dataset | tl.Mixture, world_size: int, **more: Any) -> list[tl.Loader]:
    return [tl.Loader(dataset, **{**COMMON, "rank": r, "world_size": world_size, **more}) for r in range(world_size)]


def close(loaders: list[tl.Loader]) -> None:
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 24])
def test_global_batch_stays_as_it_is(dataset: tl.Dataset, costs: tl.CostTable, world_size: int) -> None:
    """Ranks of even cost, joined, hold the rows of a single rank without costs, in that order."""
    (whole,) = ranks_of(dataset, 1, num_workers=0)
    loaders = ranks_of(dataset, world_size, num_workers=1, load_weights=costs)
    for step, *parts in zip(range(6), *loaders, strict=False):
        expected = whole.batch_at(step)
        assert [ref for part in parts for ref in part.refs] == list(expected.refs)
        for key in ("action", "cam_front", "step_index"):
            assert np.array_equal(np.concatenate([part[key].numpy() for part in parts]), expected[key].numpy())
    close([whole, *loaders])


def test_largest_load_of_a_rank_falls(dataset: tl.Dataset, costs: tl.CostTable) -> None:
    """Over many batches the busiest of four ranks has far less above the mean than with even ranks."""
    window_ns_E = costs.window_ns({"cam_front": 4})

    def excess(**more: Any) -> float:
        loaders = ranks_of(dataset, 4, num_workers=0, **{**more, "streams": ["cam_front"]})
        out = []
        for step in range(100):
            rows = [loader._engine.split.rows(step) for loader in loaders]
            episode_B = loaders[0]._engine.sampler.refs(step).episode_B
            loads = [int(window_ns_E[episode_B[r]].sum()) for r in rows]
            out.append(max(loads) * len(loads) / sum(loads))
        close(loaders)
        return float(np.mean(out))

    assert excess() > 1.4
    assert excess(load_weights=costs) < 1.2


def test_rank_batch_size_is_that_of_the_batch_at_the_cursor(dataset: tl.Dataset, costs: tl.CostTable) -> None:
    """Sizes differ from batch to batch, and the property tells the next one's."""
    loader = ranks_of(dataset, 4, load_weights=costs, num_workers=1)[1]
    sizes = set()
    promised = loader.rank_batch_size
    for batch in itertools.islice(loader, 12):
        assert len(batch["action"]) == promised
        sizes.add(promised)
        promised = loader.rank_batch_size
    assert len(sizes) > 1
    loader.close()


@pytest.mark.parametrize("order", ["interleaved", "continuous"])
def test_ranks_stay_even_under_orders_with_lanes(dataset: tl.Dataset, costs: tl.CostTable, order: str) -> None:
    """A row that moved to another rank would have its block decoded twice."""
    loaders = ranks_of(dataset, 4, load_weights=costs, order=order, num_workers=0)
    for rank, loader in enumerate(loaders):
        assert {str(loader._engine.split.rows(step)) for step in range(20)} == {str(slice(6 * rank, 6 * rank + 6))}
    close(loaders)


def test_state_names_the_table_and_loads_with_any(dataset: tl.Dataset, costs: tl.CostTable, tmp_path: Path) -> None:
    """A run continues with other load weights, or none: batches are the same."""
    costs.save(tmp_path / "costs.json")
    (loader,) = ranks_of(dataset, 1, load_weights=tmp_path / "costs.json")
    loader.seek(5)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["cost_table_digest"] == costs.digest
    (plain,) = ranks_of(dataset, 1)
    plain.load_state_dict(state)
    assert plain.train_step == 5
    assert plain.state_dict()["cost_table_digest"] is None
    close([loader, plain])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: tl.CostTable({"cam_front": [1] * d.num_episodes}, dataset_digest="0" * 64), "belongs to other data"),
        (lambda d: tl.CostTable({"cam_front": [1]}, dataset_digest=d.digest), "and 1 episodes"),
        (lambda d: tl.CostTable({"lidar": [1] * d.num_episodes}, dataset_digest=d.digest), "of none of the streams"),
        (lambda d: {"cam_front": [1] * d.num_episodes}, "expected a tl.CostTable or the path"),
        (lambda d: "no-such-costs.json", "does not exist"),
    ],
)
def test_table_that_does_not_fit_is_refused(dataset: tl.Dataset, make: Any, message: str) -> None:
    """Costs of other data would balance nothing."""
    with pytest.raises(ConfigError, match=message):
        tl.Loader(dataset, **COMMON, load_weights=make(dataset))


def mixture_and_costs(dataset: tl.Dataset) -> tuple[tl.Mixture, dict[str, tl.CostTable]]:
    """Two sources, one of which costs thirty times the other."""
    mixture = tl.Mixture({"cheap": (dataset, 0.75), "dear": (dataset, 0.25)})
    tables = {
        name: tl.CostTable({"cam_front": [cost] * dataset.num_episodes}, dataset_digest=dataset.digest)
        for name, cost in (("cheap", 1_000), ("dear", 30_000))
    }
    return mixture, tables


def test_ranks_of_a_mixture_are_of_even_cost(dataset: tl.Dataset) -> None:
    """Few rows of the dear source weigh as much as many of the other; the global batch stays as it is."""
    mixture, tables = mixture_and_costs(dataset)
    (whole,) = ranks_of(mixture, 1, num_workers=0)
    loaders = ranks_of(mixture, 4, num_workers=1, load_weights=tables)
    cost = {"cheap": 1, "dear": 30}
    for step, *parts in zip(range(5), *loaders, strict=False):
        assert [ref for part in parts for ref in part.refs] == list(whole.batch_at(step).refs)
        loads = [sum(cost[source] for source in part["source"]) for part in parts]
        assert max(loads) * 4 / sum(loads) < 1.5
        sizes = [len(part["source"]) for part in parts]
        assert max(sizes) > 2 * min(sizes)
    assert loaders[0].state_dict()["cost_table_digest"] == loaders[3].state_dict()["cost_table_digest"] is not None
    close([whole, *loaders])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tables: tables["dear"], "expected one for each source of the mixture, 'cheap', 'dear'"),
        (lambda tables: {"dear": tables["dear"]}, "are of 'dear': expected a table for each of 'cheap', 'dear'"),
        (lambda tables: {**tables, "dear": 3}, "load_weights=3 is unusable"),
    ],
)
def test_tables_that_are_not_those_of_the_sources_are_refused(dataset: tl.Dataset, change: Any, message: str) -> None:
    """Every source has its table, or none has."""
    mixture, tables = mixture_and_costs(dataset)
    with pytest.raises(ConfigError, match=message):
        tl.Loader(mixture, **COMMON, load_weights=change(tables))


def test_model_parallel_processes_of_one_rank_get_the_same_windows(dataset: tl.Dataset) -> None:
    """Given the same data-parallel rank, whatever else differs between them."""
    one, other = (tl.Loader(dataset, **COMMON, rank=1, world_size=3, num_workers=n) for n in (0, 2))
    assert [b.digest() for b in itertools.islice(one, 4)] == [b.digest() for b in itertools.islice(other, 4)]
    close([one, other])
