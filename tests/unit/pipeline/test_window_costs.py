"""What windows cost by a table: rows, and the frames before them, window by window and the same on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.decode.plan import plan_reads
from trajload.pipeline import window_costs as module
from trajload.pipeline.config import choose_streams
from trajload.pipeline.window_costs import WindowCosts
from trajload.sampling.assign import balanced_bounds

ROW, LEAD = 1_000, 700


@pytest.fixture(scope="module")
def dataset(mixed: Path) -> tl.Dataset:
    return tl.open(mixed)


def table_of(dataset: tl.Dataset) -> tl.CostTable:
    """Return costs of the large camera, in the episodes that have it."""
    has_E = np.array([dataset.has_stream(e, "cam_large") for e in range(dataset.num_episodes)], dtype=np.int64)
    costs = {"cam_large": ROW * has_E}
    return tl.CostTable(costs, dataset_digest=dataset.digest, lead_ns={"cam_large": LEAD * has_E})


@pytest.mark.parametrize(
    "window",
    [
        tl.Window(num_steps=4),
        tl.Window(num_steps=4, dilation=3, history=2, pad="edge"),
        tl.Window(num_steps=4, delta_indices={"cam_large": [-9, 0, 1]}, pad="edge"),
    ],
)
def test_cost_is_that_of_the_frames_that_the_plan_decodes(dataset: tl.Dataset, window: tl.Window) -> None:
    """For every window of an episode with far keyframes, padded ones included."""
    choices = choose_streams(dataset, ["cam_large"], window)
    costs = WindowCosts(table_of(dataset), dataset, choices, window)
    offsets_T = choices[0].places.steps_T
    num_steps = int(dataset.num_steps_E[10])
    starts = np.arange(num_steps - (3 if window.pad == "none" else 0))
    track = dataset.track(10, "cam_large")
    assert track is not None
    expected = []
    for start in starts.tolist():
        rows = np.unique(np.clip(start + offsets_T, 0, num_steps - 1))
        decoded = len(plan_reads(track, rows).packets_P4)  # type: ignore[attr-defined]
        expected.append(ROW * len(offsets_T) + LEAD * (decoded - len(rows)))
    np.testing.assert_array_equal(costs.of(np.full(len(starts), 10), starts), expected)


def test_episodes_without_the_camera_cost_nothing(dataset: tl.Dataset) -> None:
    """Windows of several episodes at once."""
    window = tl.Window(num_steps=4)
    costs = WindowCosts(table_of(dataset), dataset, choose_streams(dataset, None, window), window)
    assert costs.of(np.array([0, 4, 0, 9]), np.array([3, 8, 0, 47])).tolist() == [0, 4 * ROW, 0, 4 * ROW + 47 * LEAD]


def test_costs_are_the_same_however_little_is_kept(dataset: tl.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is worked out again."""
    window = tl.Window(num_steps=4)
    choices = choose_streams(dataset, ["cam_large"], window)
    episodes, starts = np.arange(12).repeat(20) % 12, np.tile(np.arange(20), 12)
    kept = WindowCosts(table_of(dataset), dataset, choices, window)
    first = kept.of(episodes, starts)
    monkeypatch.setattr(module, "_MAX_BYTES", 600)
    forgetful = WindowCosts(table_of(dataset), dataset, choices, window)
    np.testing.assert_array_equal(forgetful.of(episodes[::-1], starts[::-1])[::-1], first)
    assert forgetful._num_bytes <= 600 + 8 * 80 and len(forgetful._kept) <= 2


def test_frames_of_a_slow_clock_count_for_the_steps_nearest_to_them(demo_dataset: Path) -> None:
    """A clocked stream costs its rows for each step, and leads of the rows that a window takes."""
    dataset = tl.open(demo_dataset)
    window = tl.Window(num_steps=5)
    num = dataset.num_episodes
    table = tl.CostTable({"depth": [10] * num}, dataset_digest=dataset.digest, lead_ns={"depth": [3] * num})
    costs = WindowCosts(table, dataset, choose_streams(dataset, ["depth"], window), window)
    # FFV1: every frame is a keyframe, so there is nothing before the rows
    assert costs.of(np.array([0, 1]), np.array([0, 17])).tolist() == [50, 50]
    dataset.close()


def test_ranks_are_even_in_frames_decoded(dataset: tl.Dataset) -> None:
    """Of windows whose leads run from 0 to 47 frames, ranks cut by leads are far more even than ranks cut by rows alone."""
    whole, rows_only = table_of(dataset), tl.CostTable(table_of(dataset).row_ns, dataset_digest=dataset.digest)
    arguments: dict[str, Any] = {
        "window": tl.Window(num_steps=4),
        "global_batch_size": 48,
        "streams": ["cam_large"],
        "num_workers": 0,
    }
    window = arguments["window"]
    truth = WindowCosts(whole, dataset, choose_streams(dataset, ["cam_large"], window), window)
    excess = {}
    for name, table in (("leads", whole), ("rows", rows_only)):
        loaders = [tl.Loader(dataset, **arguments, rank=r, world_size=4, load_weights=table) for r in range(4)]
        found = []
        for step in range(30):
            refs = loaders[0]._engine.sampler.refs(step)
            cost_B = truth.of(refs.episode_B, refs.start_B)
            rows = [loader._engine.split.rows(step) for loader in loaders]
            assert [r.start for r in rows] == [0, *(r.stop for r in rows[:-1])]
            loads = [int(cost_B[r].sum()) for r in rows]
            found.append(max(loads) * 4 / sum(loads))
            if name == "leads":
                bounds = balanced_bounds(cost_B, 4)
                assert [r.stop for r in rows] == bounds[1:]
        excess[name] = float(np.mean(found))
        for loader in loaders:
            loader.close()
    assert excess["leads"] < 1.08 < 1.15 < excess["rows"]


@pytest.mark.multiproc
def test_worker_processes_cut_batches_the_same(mixed: Path) -> None:
    """They are told of the costs, and make the rows of their rank, which differ in number from step to step."""
    sizes = set()
    with tl.Loader(
        mixed, window=tl.Window(num_steps=4), global_batch_size=16, streams=["cam_large"], rank=1, world_size=3,
        load_weights=table_of(tl.open(mixed)), num_workers=2, workers="processes:2",
    ) as loader:  # fmt: skip
        for batch, step in zip(loader, range(6), strict=False):
            assert batch.digest() == loader.batch_at(step).digest()
            sizes.add(len(batch.refs))
    assert len(sizes) > 1
