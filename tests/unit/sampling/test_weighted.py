"""weighted/1: episodes by weight, with replacement, exact integers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError
from trajload.sampling.orders import Weighted, make_order
from trajload.sampling.sampler import Sampler
from trajload.sampling.weighted import integer_weights
from trajload.sampling.windows import WindowTable
from trajload.spec import Window


def counts_of(table: WindowTable, weights: object, num: int, seed: int = 1) -> np.ndarray:
    """Return how often each episode comes in `num` draws."""
    order = make_order(Weighted(episode_weights=weights), table=table, seed=seed)  # type: ignore[arg-type]
    per_epoch = order.num_windows
    ids = [order.window_ids(epoch, np.arange(per_epoch)) for epoch in range(-(-num // per_epoch))]
    return np.bincount(table.locate(np.concatenate(ids)[:num])[0], minlength=table.num_episodes)


def test_episodes_come_in_proportion_to_their_weights() -> None:
    """However long they are: 100,000 draws agree with the weights to five standard deviations."""
    table = WindowTable(np.array([1, 1000, 50, 0, 7]), Window(num_steps=1))
    counts = counts_of(table, [0.5, 0.25, 0, 9, 1.25], 100_000)
    expected = np.array([0.25, 0.125, 0, 0, 0.625])
    assert counts[[2, 3]].tolist() == [0, 0]
    assert (np.abs(counts / 100_000 - expected) < 5 * np.sqrt(expected * (1 - expected) / 100_000) + 1e-12).all()


def test_windows_of_an_episode_come_equally_often() -> None:
    """Inside an episode every window has the same chance, and draws repeat windows."""
    table = WindowTable(np.array([40, 60]), Window(num_steps=1))
    order = make_order(Weighted(episode_weights=[1, 0]), table=table, seed=3)
    ids = np.concatenate([order.window_ids(e, np.arange(100)) for e in range(400)])
    counts = np.bincount(ids, minlength=100)
    assert counts[40:].sum() == 0
    chi2 = float(((counts[:40] - 1000) ** 2 / 1000).sum())
    assert abs(chi2 - 39) < 6 * np.sqrt(2 * 39)


@given(st.lists(st.floats(0, 1e300, allow_subnormal=True), min_size=1, max_size=50).filter(any))
@settings(max_examples=300, deadline=None)
def test_float_weights_become_integers_near_their_share(weights: list[float]) -> None:
    """Rounded to 32 bits of the largest; zero stays zero and nothing else becomes it."""
    whole_E = integer_weights(np.array(weights))
    assert ((whole_E > 0) == (np.array(weights) > 0)).all()
    assert whole_E.max() == 2**32
    share_E = np.array(weights) / max(weights) * 2**32
    assert (np.abs(whole_E - share_E) <= 1).all()


def test_integer_weights_are_kept_and_scale_does_not_matter_to_floats() -> None:
    """Integers are exact; floats count by their ratios."""
    assert integer_weights(np.array([3, 0, 2**50])).tolist() == [3, 0, 2**50]
    assert integer_weights(np.array([0.25, 0.5])).tolist() == integer_weights(np.array([1.0, 2.0])).tolist()
    many = integer_weights(np.ones(3_000_000))
    assert int(many.sum()) < 2**53


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -2], r"episode_weights\[1\]=-2 is invalid: expected a finite number >= 0"),
        ([1.0, float("nan")], r"episode_weights\[1\]=nan is invalid"),
        ([float("inf"), 1], r"episode_weights\[0\]=inf is invalid"),
        ([0, 0], "episode_weights are all 0"),
        ([], "episode_weights are all 0|unusable"),
        ([[1, 2]], r"got shape \(1, 2\)"),
        (["a"], "expected \\(num_episodes,\\) numbers"),
        ([2**53, 1], "episode_weights are too large"),
    ],
)
def test_unusable_weights_are_named(weights: object, message: str) -> None:
    """Negative, not finite, all zero, of another shape or type: refused when the value is made."""
    with pytest.raises(ConfigError, match=message):
        Weighted(episode_weights=weights)  # type: ignore[arg-type]


def test_weights_that_do_not_fit_the_episodes_are_refused() -> None:
    """Another number of weights, or weight only on episodes that are too short."""
    table = WindowTable(np.array([5, 1]), Window(num_steps=2))
    with pytest.raises(ConfigError, match=r"episode_weights have length 3: expected one for each of 2 episodes"):
        make_order(Weighted(episode_weights=[1, 2, 3]), table=table, seed=1)
    with pytest.raises(ConfigError, match="no window can be drawn"):
        make_order(Weighted(episode_weights=[0, 2]), table=table, seed=1)


def test_weights_by_a_function_of_the_episode() -> None:
    """A function sees each EpisodeInfo once; what is no number is named with the episode."""
    infos = [SimpleNamespace(index=i, key=f"e{i}", metadata={"quality": i / 2}) for i in range(3)]
    bound = Weighted(episode_weights=lambda info: info.metadata["quality"]).bind(lambda: infos)
    assert bound.to_json() == Weighted(episode_weights=[0.0, 0.5, 1.0]).to_json()
    with pytest.raises(ConfigError, match=r"episode_weights gave None for episode 0 \('e0'\)"):
        Weighted(episode_weights=lambda info: None).bind(lambda: infos)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigError, match="episode_weights is a function: it needs a dataset"):
        Weighted(episode_weights=lambda info: 1.0).to_json()


def test_weighted_order_has_no_way_back() -> None:
    """A window that comes several times has no single offset."""
    order = make_order(Weighted(episode_weights=[1]), table=WindowTable(np.array([5]), Window(num_steps=1)), seed=1)
    with pytest.raises(ConfigError, match="draws with replacement"):
        order.offsets(0, np.array([0]))


def test_replacements_of_bad_windows_are_windows_that_the_order_takes() -> None:
    """An episode of weight 0 does not come in through the back door, nor a window outside the tiling."""
    table = WindowTable(np.array([50, 50]), Window(num_steps=5))
    weighted = Sampler(table, order=Weighted(episode_weights=[0, 1]), seed=1, global_batch_size=2)
    assert all(weighted.eligible_id(draw) >= 46 for draw in range(weighted.num_windows))
    continuous = Sampler(table, order="continuous", seed=1, global_batch_size=2)
    got = {continuous.eligible_id(draw) for draw in range(continuous.num_windows)}
    assert got == {*range(0, 46, 5), *range(46, 92, 5)}
    shuffled = Sampler(table, order="shuffled", seed=1, global_batch_size=2)
    assert shuffled.eligible_id(17) == 17
