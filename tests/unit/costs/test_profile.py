"""Profiles: what is measured, what the table says of it, and how costs of episodes and shards come from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trajload as tl
from trajload.costs.epoch import epoch_ns
from trajload.costs.profile import profile
from trajload.costs.sample import sample_windows
from trajload.errors import ConfigError

WINDOW = tl.Window(num_steps=8)


@pytest.fixture(scope="module")
def dataset(mixed: Path) -> tl.Dataset:
    return tl.open(mixed)


@pytest.fixture(scope="module")
def measured(dataset: tl.Dataset):  # type: ignore[no-untyped-def]
    return profile(dataset, window=WINDOW, repeats=3)


def test_table_has_a_cost_for_every_stream_that_an_episode_has(dataset: tl.Dataset, measured) -> None:  # type: ignore[no-untyped-def]
    """A camera that an episode lacks costs nothing there; text has no cost."""
    table = measured.table
    assert set(table.row_ns) == {"cam_small", "cam_large", "action", "force"}
    assert set(table.lead_ns) == {"cam_small", "cam_large"}
    for name, costs_E in table.row_ns.items():
        has_E = [dataset.has_stream(e, name) for e in range(dataset.num_episodes)]
        np.testing.assert_array_equal(costs_E > 0, has_E)
    assert table.dataset_digest == dataset.digest


def test_table_says_how_it_was_measured(measured) -> None:  # type: ignore[no-untyped-def]
    """Machine, versions, backend and window stand beside the costs."""
    info = measured.table.info
    assert info["backend"] in ("libav", "pyav")
    assert info["window"]["num_steps"] == 8
    assert info["machine"]["processor"] and info["machine"]["versions"]["av"]


def test_larger_pictures_and_longer_groups_cost_more(measured) -> None:  # type: ignore[no-untyped-def]
    """Four times the pixels, and six times the keyframe distance, show in the shards' costs."""
    small, large, far = (shard["seconds"] for shard in measured.report.shards)
    assert small < large < far
    kinds = {(kind["stream"], kind["gop"]) for kind in measured.report.kinds}
    assert kinds == {("cam_small", 8), ("cam_large", 8), ("cam_large", 48), ("action", 0), ("force", 0)}


def test_cost_of_an_epoch_counts_every_window_and_every_frame_before_it(dataset: tl.Dataset) -> None:
    """By hand: windows times steps times the row, and leads 0 to 7 in turn within groups of eight."""
    num = dataset.num_episodes
    table = tl.CostTable({"cam_small": [10] * num}, dataset_digest=dataset.digest, lead_ns={"cam_small": [1000] * num})
    got_E = epoch_ns(dataset, table, WINDOW)["cam_small"]
    count = int(dataset.num_steps_E[0]) - 7
    assert got_E[0] == count * 8 * 10 + 1000 * sum(start % 8 for start in range(count))
    assert got_E[5] == (int(dataset.num_steps_E[5]) - 7) * 80  # it lacks the camera: no frames to decode


def test_samples_cover_short_and_long_leads(dataset: tl.Dataset) -> None:
    """Without them the cost of a row could not be told from that of a frame before it."""
    windows = sample_windows(dataset, 9, "cam_large", WINDOW, 4)
    leads = [w.num_lead for w in windows]
    assert len(windows) == 4 and min(leads) <= 2 and max(leads) >= 30
    assert sample_windows(dataset, 9, "cam_small", WINDOW, 4) == []


def test_other_episodes_cost_what_their_kind_costs(dataset: tl.Dataset) -> None:
    """With two of twelve episodes measured the table is complete all the same."""
    found = profile(dataset, window=WINDOW, max_episodes=2, repeats=1, streams=["cam_small", "cam_large"])
    costs_E = found.table.row_ns["cam_small"] + found.table.row_ns["cam_large"]
    assert (costs_E > 0).all()
    assert found.report.num_measured == 2


def test_an_episode_shorter_than_a_window_is_measured_too(dataset: tl.Dataset) -> None:
    """Its windows, padded, cost something."""
    found = profile(dataset, window=tl.Window(num_steps=100), repeats=1, streams=["cam_small"])
    assert (found.table.row_ns["cam_small"][:4] > 0).all()
    assert found.report.shards[0]["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repeats": 0}, "repeats=0"),
        ({"windows_per_episode": True}, "windows_per_episode=True"),
        ({"max_episodes": 0}, "max_episodes=0"),
        ({"streams": ["task"]}, "no stream of 'mixed' has a cost"),
        ({"streams": ["lidar"]}, "'lidar' is unknown"),
    ],
)
def test_bad_arguments_are_refused(dataset: tl.Dataset, arguments: dict, message: str) -> None:
    """Each by its name."""
    with pytest.raises(ConfigError, match=message):
        profile(dataset, window=WINDOW, **arguments)


def test_table_of_other_data_is_refused(dataset: tl.Dataset) -> None:
    """Costs of another version would be of other episodes."""
    table = tl.CostTable({"cam_small": [1] * dataset.num_episodes}, dataset_digest="0" * 64)
    with pytest.raises(ConfigError, match="belongs to other data"):
        epoch_ns(dataset, table, WINDOW)
