"""The scores of an order: they agree with counting, and with what is drawn."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from trajload.errors import ConfigError
from trajload.sampling.blocks import BlockTable
from trajload.sampling.orders import Interleaved, Weighted
from trajload.sampling.quality import measure_quality, mixing, uniform_mixing
from trajload.sampling.sampler import Sampler
from trajload.sampling.windows import WindowTable
from trajload.spec import Window

COUNTS = np.array([30, 1, 200, 77, 16, 64] * 5)


def sampler_of(order: object, size: int = 32, **kwargs: object) -> Sampler:
    table = WindowTable(COUNTS, Window(num_steps=1))
    return Sampler(table, order=order, seed=4, global_batch_size=size, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 8, 100])
def test_what_uniform_would_give_agrees_with_many_shuffles(size: int) -> None:
    """The closed form lies within 2 % of the mean over neighbouring batches of 100 epochs."""
    blocks = BlockTable(WindowTable(COUNTS, Window(num_steps=1)).first_E1, 16)
    expected = uniform_mixing(blocks, COUNTS, size)
    sampler = sampler_of("shuffled", size)
    found = []
    for epoch in range(100):
        first = -(-epoch * sampler.num_windows // size)
        found.append(mixing(sampler, blocks, range(first, first + min(50, sampler.num_windows // size - 1))))

    def mean(of: Callable[[object], float]) -> float:
        return float(np.mean([of(f) for f in found]))

    assert mean(lambda f: f.distinct_episodes) == pytest.approx(expected.distinct_episodes, rel=0.02)
    assert mean(lambda f: f.distinct_blocks) == pytest.approx(expected.distinct_blocks, rel=0.02)
    if size > 1:
        assert mean(lambda f: f.shared_with_next) == pytest.approx(expected.shared_with_next, rel=0.02)


def test_a_batch_of_everything_holds_all_episodes() -> None:
    """Where a batch is as large as the dataset nothing can be absent."""
    blocks = BlockTable(WindowTable(COUNTS, Window(num_steps=1)).first_E1, 16)
    got = uniform_mixing(blocks, COUNTS, int(COUNTS.sum()) + 5)
    assert (got.distinct_episodes, got.distinct_blocks, got.shared_with_next) == (30, blocks.num_blocks, 30)


def test_scores_of_interleaved_are_better_than_those_of_sequential() -> None:
    """The numbers tell a good order from a bad one."""
    good = measure_quality(sampler_of(Interleaved(lanes_per_row=2)), num_batches=40)
    bad = measure_quality(sampler_of("sequential"), num_batches=40)
    assert good.got.distinct_blocks == 32.0
    assert bad.got.distinct_episodes < 3 and bad.got.distinct_blocks < 5
    assert good.got.distinct_episodes > 0.9 * good.uniform.distinct_episodes
    assert good.uses_per_block < 1.5 < 10 < bad.uses_per_block
    assert (good.num_lanes, bad.num_lanes, bad.load, bad.ranks_per_block) == (64, None, None, {})
    assert good.load is not None and 1 <= good.load.largest_over_mean < 3
    assert set(good.ranks_per_block) == {2, 3, 4, 8}


@pytest.mark.parametrize("order", ["shuffled", "continuous", "interleaved", Weighted(episode_weights=np.ones(30))])
@pytest.mark.parametrize("size", [1, 32, 5000])
def test_every_order_and_size_can_be_scored(order: object, size: int) -> None:
    """Also where a batch is larger than the dataset, and on one rank's worth of rows; scores are JSON."""
    scores = measure_quality(sampler_of(order, size), num_batches=3)
    assert json.dumps(scores.to_json(), allow_nan=False)
    assert scores.got.distinct_episodes >= 1


def test_scores_of_a_short_finite_run_stay_inside_it() -> None:
    """Nothing beyond the end is asked for."""
    scores = measure_quality(sampler_of("shuffled", 1000, num_epochs=1), num_batches=50)
    assert scores.train_steps[1] <= 2
    one = measure_quality(sampler_of("shuffled", 5000, num_epochs=1), num_batches=50)
    assert one.train_steps == (0, 1)


def test_fewer_than_two_batches_are_refused() -> None:
    """Overlap needs two."""
    with pytest.raises(ConfigError, match="num_batches=1 is invalid"):
        measure_quality(sampler_of("shuffled"), num_batches=1)


@pytest.mark.parametrize(
    ("order", "row"),
    [
        ("shuffled", [13.4, 15.8, 4.4, 0.3, 0.3]),
        ("interleaved", [13.5, 16.0, 4.3, 14.9, 13.8]),
        (Interleaved(lanes_per_row=8), [13.3, 16.0, 4.5, 0.0, 15.0]),
    ],
    ids=str,
)
def test_scores_of_the_page_about_orders(order: object, row: list[float]) -> None:
    """docs/how-to/choose-order.md says what `interleaved` trades: how a batch is mixed, and what comes back batches later."""
    table = WindowTable(np.full(40, 300), Window(num_steps=16))
    sampler = Sampler(table, order=order, seed=7, global_batch_size=16)  # type: ignore[arg-type]
    found = measure_quality(sampler)
    blocks = BlockTable(table.first_E1, 16)
    sets = [set(blocks.block_of(sampler.refs(k).window_id_B)[0].tolist()) for k in range(*found.train_steps)]
    shared = [float(np.mean([len(a & b) for a, b in zip(sets, sets[d:], strict=False)])) for d in (4, 8)]
    got = [found.got.distinct_episodes, found.got.distinct_blocks, found.got.shared_with_next, *shared]
    assert [round(x, 1) for x in got] == row
    uniform = found.uniform
    assert [round(uniform.distinct_episodes, 1), round(uniform.distinct_blocks, 1)] == [13.3, 15.8]
    assert round(uniform.shared_with_next, 1) == 4.4
