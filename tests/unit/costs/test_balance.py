"""Dealing episodes to shards: whole, never empty, and even wherever episodes allow it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.costs.balance import Spread, assign_episodes, shard_sums
from trajload.errors import ConfigError
from trajload.rng import key_rng


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 12))
def test_every_episode_is_in_one_shard_and_no_shard_is_empty(costs: list[int], num_shards: int) -> None:
    """Whatever they cost, free ones included; the dearest shard is at most one episode above the average."""
    num_shards = min(num_shards, len(costs))
    shards = assign_episodes(np.array(costs), num_shards)
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(costs)))
    assert len(shards) == num_shards and all(len(group) and (np.diff(group) > 0).all() for group in shards)
    largest = max(max(costs), sum(costs) / num_shards + max(costs) * (1 - 1 / num_shards))
    assert shard_sums(np.array(costs), shards).max() <= largest + 1e-9


def test_shards_of_many_episodes_are_even() -> None:
    """Costs that differ by a factor of forty are dealt to 1 % of the average."""
    cost_E = key_rng(3, "test-balance").lognormal(0, 1.2, size=200)
    before = Spread.of(shard_sums(cost_E, np.array_split(np.arange(200)[np.argsort(cost_E)], 8)))
    after = Spread.of(shard_sums(cost_E, assign_episodes(cost_E, 8)))
    assert before.max_over_mean > 2
    assert after.max_over_mean < 1.01 and after.min_over_mean > 0.98


def test_same_costs_same_shards() -> None:
    """Equal costs are dealt in one way only."""
    first, second = (assign_episodes(np.full(30, 5), 4) for _ in range(2))
    assert [group.tolist() for group in first] == [group.tolist() for group in second]
    assert sorted(map(len, first)) == [7, 7, 8, 8]


@pytest.mark.parametrize("num_shards", [0, -1, 4, True, 1.5])
def test_impossible_numbers_of_shards_are_refused(num_shards: object) -> None:
    """A shard holds at least one whole episode."""
    with pytest.raises(ConfigError, match="expected 1 to 3, the number of episodes"):
        assign_episodes(np.ones(3), num_shards)  # type: ignore[arg-type]


def test_costs_that_are_no_numbers_are_refused() -> None:
    """NaN would win every comparison, or none."""
    with pytest.raises(ConfigError, match="finite numbers"):
        assign_episodes(np.array([1.0, np.nan]), 1)


def test_spread_of_shards_that_cost_nothing_is_even() -> None:
    """No division by zero."""
    assert Spread.of(np.zeros(3)).max_over_mean == 1
