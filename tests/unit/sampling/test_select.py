"""Choosing and splitting episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trajload as tl
from trajload.errors import ConfigError, WindowError
from trajload.pipeline.numbering import plan_windows
from trajload.sampling.select import choose_episodes, episodes_json, split
from trajload.sampling.windows import WindowTable
from trajload.sources.base import EpisodeInfo


class Episodes:
    """The part of a dataset that choosing looks at."""

    name = "some-data"

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.num_steps_E = np.full(len(keys), 20)

    @property
    def num_episodes(self) -> int:
        return len(self.keys)

    def episode_key(self, episode: int) -> str:
        return self.keys[episode]

    def episodes(self) -> Iterator[EpisodeInfo]:
        for i, key in enumerate(self.keys):
            yield EpisodeInfo(i, key, 20, "shard", None, {"quality": i})


def data(num: int) -> Any:
    return Episodes([f"episode-{i:06d}" for i in range(num)])


# ---- choosing ----


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [
        ([3, 0], [0, 3]),
        (np.array([1]), [1]),
        ([-1], [4]),
        (range(2, 4), [2, 3]),
        (lambda info: info.metadata["quality"] >= 3, [3, 4]),
        (lambda info: np.bool_(info.key.endswith("2")), [2]),
    ],
)
def test_episodes_are_chosen_by_number_or_by_a_function(episodes: Any, expected: list[int]) -> None:
    """Numbers in any order, negative ones from the end, or a predicate on EpisodeInfo."""
    is_chosen_E = choose_episodes(data(5), episodes)
    assert is_chosen_E is not None
    assert np.flatnonzero(is_chosen_E).tolist() == expected
    assert choose_episodes(data(5), None) is None


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([5], r"episodes names 5: the dataset 'some-data' has 5 episodes"),
        ([-6], r"episodes names -6"),
        ([1, 1], r"episodes names episode 1 twice: .*Weighted"),
        ([4, -1], r"episodes names episode 4 twice"),
        ([], r"chooses none of the 5 episodes of 'some-data'"),
        (lambda info: False, r"chooses none of the 5 episodes"),
        (lambda info: info.metadata.get("x"), r"episodes gave None for episode 0 \('episode-000000'\)"),
        ([0.5], r"got shape \(1,\) of float64"),
        (np.ones(5, dtype=bool), r"got shape \(5,\) of bool"),
        ("train", r"expected numbers of episodes"),
        (3, r"episodes=3 is unusable"),
    ],
)
def test_unusable_choices_are_named(episodes: Any, message: str) -> None:
    """What does not name episodes is refused with the reason."""
    with pytest.raises(ConfigError, match=message):
        choose_episodes(data(5), episodes)


def test_table_of_chosen_episodes_keeps_their_numbers() -> None:
    """Only their windows are numbered; episode numbers stay those of the dataset."""
    table = WindowTable(np.array([4, 9, 1, 6]), tl.Window(num_steps=2), is_chosen_E=np.array([False, True, True, True]))
    assert (table.num_windows, table.num_episodes) == (8 + 5, 4)
    episode_B, start_B = table.locate(np.arange(13))
    assert sorted(set(episode_B.tolist())) == [1, 3]
    assert table.window_id(episode_B, start_B).tolist() == list(range(13))
    with pytest.raises(WindowError, match="step 0 of episode 0: the episode gives no window"):
        table.window_id(np.array([0]), np.array([0]))
    with pytest.raises(WindowError, match=r"the longest of 1 episodes has 1 steps"):
        WindowTable(np.array([4, 1]), tl.Window(num_steps=2), is_chosen_E=np.array([False, True]))
    with pytest.raises(ConfigError, match=r"is_chosen_E has shape \(1,\): expected one for each of 2 episodes"):
        WindowTable(np.array([4, 1]), tl.Window(num_steps=2), is_chosen_E=np.array([True]))


def test_plan_windows_binds_weights_and_records_the_choice() -> None:
    """Weights given as a function are looked up; the state gets the count and a digest of the episodes."""
    order = tl.Weighted(episode_weights=lambda info: info.metadata["quality"])
    table, config, chosen = plan_windows(data(5), tl.Window(num_steps=3), (), order, [1, 2])
    assert table.num_windows == 2 * 18
    assert config.to_json() == tl.Weighted(episode_weights=[0, 1, 2, 3, 4]).to_json()
    assert chosen["episodes"] == episodes_json(np.array([False, True, True, False, False]))
    assert chosen["episodes"]["num_episodes"] == 2
    assert plan_windows(data(5), tl.Window(num_steps=3), (), "shuffled", None)[2] == {}


# ---- splitting ----


def test_split_is_complete_disjoint_and_about_the_size_asked_for() -> None:
    """Every episode is in one part; sizes are within five standard deviations."""
    parts = split(data(10_000), {"train": 0.8, "val": 0.15, "test": 0.05}, seed=3)
    assert list(parts) == ["train", "val", "test"]
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(10_000))
    for name, share in (("train", 0.8), ("val", 0.15), ("test", 0.05)):
        assert abs(len(parts[name]) - 10_000 * share) < 5 * np.sqrt(10_000 * share * (1 - share))
        assert parts[name].dtype == np.int64 and (np.diff(parts[name]) > 0).all()


@given(
    keys=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=40, unique=True),
    more=st.lists(st.text(min_size=9, max_size=12), max_size=40, unique=True),
    seed=st.integers(-(2**63), 2**63 - 1),
)
@settings(max_examples=100, deadline=None)
def test_split_is_stable_when_data_are_appended_or_reordered(keys: list[str], more: list[str], seed: int) -> None:
    """A key stays in its part whatever else the dataset holds, and wherever in it the key stands."""

    def part_of(all_keys: list[str]) -> dict[str, str]:
        parts = split(Episodes(all_keys), {"a": 0.5, "b": 0.3, "c": 0.2}, seed=seed)  # type: ignore[arg-type]
        return {all_keys[i]: name for name, numbers in parts.items() for i in numbers}

    before, after = part_of(keys), part_of([*more, *reversed(keys)])
    assert {key: after[key] for key in keys} == before


PINNED = [1, 5, 10, 13, 16, 19, 20, 22, 28, 31, 39]


def test_split_of_known_keys_never_changes() -> None:
    """Pinned: a run's validation set must be that of the release it began with."""
    assert split(data(40), {"train": 0.75, "val": 0.25}, seed=7)["val"].tolist() == PINNED
    assert split(data(40), {"train": 0.75, "val": 0.25}, seed=8)["val"].tolist() != PINNED


def test_a_smaller_last_part_is_taken_from_the_end_only() -> None:
    """Raising the first fraction moves episodes into it and none out of it."""
    small, large = (set(split(data(500), {"train": x, "val": 1 - x})["train"].tolist()) for x in (0.5, 0.75))
    assert small < large


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train": 0.9, "val": 0.2}, r"sum to 1\.1"),
        ({}, r"sum to 0"),
        ({"train": 1.5, "val": -0.5}, r"parts\['val'\]=-0\.5 is invalid"),
        ({"train": 1, "val": 0}, r"parts\['val'\]=0 is invalid"),
        ({"train": "all"}, r"parts\['train'\]='all' is invalid"),
        ({"train": float("nan")}, r"parts\['train'\]=nan is invalid"),
        ({"train": True}, r"parts\['train'\]=True is invalid"),
    ],
)
def test_unusable_fractions_are_named(parts: Any, message: str) -> None:
    """Fractions are above 0 and sum to 1."""
    with pytest.raises(ConfigError, match=message):
        split(data(3), parts)


@pytest.mark.parametrize("parts", [{"a": 1}, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, dict.fromkeys("abcdefghij", 0.1)])
def test_fractions_that_sum_to_one_but_for_rounding_are_taken(parts: dict[str, float]) -> None:
    """Thirds are fine."""
    assert sum(len(x) for x in split(data(30), parts).values()) == 30
