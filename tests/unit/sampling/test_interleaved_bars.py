"""What `interleaved` promises, held on ragged episodes and on few equal ones: mixing, even load, one rank a block."""

from __future__ import annotations

import numpy as np
import pytest

from trajload.rng import key_rng
from trajload.sampling.interleaved import InterleavedOrder
from trajload.sampling.orders import Interleaved, Interleaved1
from trajload.sampling.quality import block_load, measure_quality, mixing, ranks_per_block, uniform_mixing
from trajload.sampling.sampler import Sampler
from trajload.sampling.windows import WindowTable
from trajload.spec import Window

DATA = {
    "ragged": key_rng(5, "test").integers(5, 401, 600),  # 600 episodes of 5 to 400 windows
    "equal": np.full(40, 285),
}
CASES = [("ragged", 32, 4), ("ragged", 32, 8), ("ragged", 256, 4), ("equal", 32, 4), ("equal", 32, 8)]


def epoch_of(
    data: str, size: int, lanes_per_row: int, config: type[Interleaved] = Interleaved, seed: int = 7
) -> tuple[Sampler, InterleavedOrder, range]:
    """Return a sampler, its order, and the train_steps of the first epoch without its start, where all lanes begin."""
    table = WindowTable(DATA[data], Window(num_steps=1))
    sampler = Sampler(table, order=config(lanes_per_row=lanes_per_row), seed=seed, global_batch_size=size)
    order = sampler.window_order
    assert isinstance(order, InterleavedOrder) and order.lanes_per_row == lanes_per_row
    return sampler, order, range(2 * lanes_per_row, order.num_windows // size)


@pytest.mark.parametrize("data", DATA)
def test_batch_of_32_at_256_lanes_holds_as_good_as_32_blocks(data: str) -> None:
    """At least 31.9 different blocks on average over an epoch."""
    sampler, order, steps = epoch_of(data, 32, 8)
    assert order.num_lanes == 256
    assert mixing(sampler, order.blocks, steps).distinct_blocks >= 31.9


@pytest.mark.parametrize(("data", "size", "lanes_per_row"), CASES)
def test_batches_mix_no_worse_than_a_uniform_shuffle(data: str, size: int, lanes_per_row: int) -> None:
    """Different episodes a batch, and episodes shared with the next one: within 2 % of uniform, or better.

    Blocks stay for 16 * K batches, so an epoch of the small data is only a few draws: of them several seeds are looked at.
    """
    found = [epoch_of(data, size, lanes_per_row, seed=seed) for seed in range(7, 8 + 7 * (data == "equal"))]
    got = [mixing(sampler, order.blocks, steps) for sampler, order, steps in found]
    uniform = uniform_mixing(found[0][1].blocks, DATA[data], size)
    assert np.mean([m.distinct_episodes for m in got]) >= 0.98 * uniform.distinct_episodes
    assert np.mean([m.shared_with_next for m in got]) <= 1.02 * uniform.shared_with_next
    assert min(m.distinct_blocks for m in got) >= uniform.distinct_blocks


def test_one_lane_a_row_shares_episodes_with_the_next_batch() -> None:
    """The measure tells a bad order: with K = 1 neighbouring batches come from the same blocks."""
    sampler, order, steps = epoch_of("ragged", 256, 1)
    got = mixing(sampler, order.blocks, steps)
    assert got.shared_with_next > 2 * uniform_mixing(order.blocks, DATA["ragged"], 256).shared_with_next


@pytest.mark.parametrize(("data", "size", "lanes_per_row"), CASES)
def test_new_blocks_come_evenly(data: str, size: int, lanes_per_row: int) -> None:
    """Over 8 batches never more than 1.5 times the mean, away from the epoch's start, where all lanes begin."""
    sampler, order, steps = epoch_of(data, size, lanes_per_row)
    load = block_load(sampler, steps)
    assert load is not None
    # Where lanes go on over the ends of epochs, what cut blocks cost comes all the time.
    num_uses = order.blocks.num_blocks + order.num_lanes * (order.num_continued(1) > 0)
    assert load.mean == pytest.approx(size * num_uses / order.num_windows, rel=0.08)
    assert load.largest_over_mean <= 1.5


@pytest.mark.parametrize("epoch", range(1, 6))
@pytest.mark.parametrize(("data", "size", "lanes_per_row"), CASES)
def test_new_blocks_come_evenly_in_every_epoch(data: str, size: int, lanes_per_row: int, epoch: int) -> None:
    """Not by luck of one epoch's keys."""
    _, order, steps = epoch_of(data, size, lanes_per_row)
    begins_B = order.block_uses(epoch, np.arange(steps.stop * size)).begins_B
    num_new_S = begins_B.reshape(-1, size).sum(axis=1)[steps.start :]
    assert np.convolve(num_new_S, np.full(8, 1 / 8), mode="valid").max() <= 1.5 * num_new_S.mean()


def test_new_blocks_came_less_evenly_before() -> None:
    """The measure tells: lanes of the first version begin blocks by chance."""
    sampler, _, steps = epoch_of("ragged", 32, 8, Interleaved1)
    load = block_load(sampler, steps)
    assert load is not None and load.largest_over_mean > 1.5


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize(("data", "size", "lanes_per_row"), CASES)
def test_each_block_is_needed_by_one_rank(data: str, size: int, lanes_per_row: int, world_size: int) -> None:
    """At most 1.05 decodes a block, whatever the number of ranks and the epoch."""
    _, order, _ = epoch_of(data, size, lanes_per_row)
    for epoch in range(3):
        assert ranks_per_block(order, size, world_size, epoch=epoch) <= 1.05


def test_blocks_of_few_equal_episodes_went_to_several_ranks_before() -> None:
    """The measure tells: neighbouring lanes of the first version lie on neighbouring rows."""
    _, order, _ = epoch_of("equal", 32, 8, Interleaved1)
    assert max(ranks_per_block(order, 32, 8, epoch=epoch) for epoch in range(3)) > 1.05


@pytest.mark.parametrize("data", DATA)
def test_scores_that_the_command_shows_are_within_the_bars(data: str) -> None:
    """`trajload order --quality` says the same."""
    scores = measure_quality(epoch_of(data, 32, 8)[0], num_batches=200)
    assert scores.got.distinct_blocks >= 31.9
    assert scores.load is not None and scores.load.largest_over_mean <= 1.5
    assert max(scores.ranks_per_block.values()) <= 1.05
    assert scores.uses_per_block < 1 + (scores.num_lanes or 0) / scores.num_blocks + 0.06


def test_a_batch_smaller_than_a_slot_begins_blocks_evenly_too() -> None:
    """As a source of a mixture may ask for: 8 rows begin 0.5 blocks a batch, 4 in 8 batches."""
    _, order, steps = epoch_of("ragged", 8, 4)
    uses = order.block_uses(0, np.arange(steps.stop * 8))
    is_whole_B = uses.begins_B & (uses.use_size_B == 16)
    num_new_S = is_whole_B.reshape(-1, 8).sum(axis=1)[4 * 16 : -4 * 16]
    assert np.convolve(num_new_S, np.ones(8), mode="valid").max() <= 5
