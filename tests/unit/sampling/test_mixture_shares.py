"""The sampler of a mixture: shares and stretches, blocks, seeds, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trajload.errors import ConfigError
from trajload.sampling.assign import rank_rows
from trajload.sampling.mixture import MixturePart, MixtureSampler, source_seed
from trajload.sampling.orders import Interleaved, OrderConfig, order_config
from trajload.sampling.windows import WindowTable
from trajload.spec import Window
from trajload.world import World


def part(name: str, weight: Any, counts: list[int], order: OrderConfig | str = "shuffled") -> MixturePart:
    """Return a source whose episodes have these numbers of windows."""
    table = WindowTable(np.asarray(counts), Window(num_steps=1))
    return MixturePart(name=name, weight=weight, table=table, order=order_config(order))


def mixture_of(parts: list[MixturePart], size: int, **more: Any) -> MixtureSampler:
    return MixtureSampler(parts, **{"by": "windows", "seed": 7, "global_batch_size": size, **more})


# ---- by episodes, shares, blocks ----


def test_by_episodes_counts_episodes_gone_through() -> None:
    """Equal weights go through as many episodes of each source, however long they are."""
    parts = [part("long", 0.5, [90] * 10), part("short", 0.5, [10] * 50)]
    mixture = mixture_of(parts, 10, by="episodes")
    assert mixture.shares() == {"long": 0.9, "short": 0.1}
    assert mixture_of(parts, 10).shares() == {"long": 0.5, "short": 0.5}


def test_episodes_without_windows_are_not_gone_through() -> None:
    """They do not lower the mean."""
    assert mixture_of([part("a", 0.5, [30, 0, 0]), part("b", 0.5, [10])], 4, by="episodes").shares()["a"] == 0.75


@pytest.mark.parametrize(
    ("weights", "size", "stretch_steps", "quotas"),
    [
        ([0.5, 0.5], 32, 1, (16, 16)),
        ([0.7, 0.3], 32, 5, (112, 48)),
        ([0.9, 0.1], 16, 5, (72, 8)),
        ([1 / 3, 1 / 3, 1 / 3], 32, 3, (32, 32, 32)),
        ([0.333333333, 0.333333333, 0.333333334], 32, 8, (85, 85, 86)),
        ([0.123, 0.877], 8, 8, (8, 56)),
    ],
)
def test_stretch_is_the_shortest_that_makes_shares_whole(
    weights: list[float], size: int, stretch_steps: int, quotas: tuple[int, ...]
) -> None:
    """Up to 16 train_steps; else 8, rounded by largest remainder."""
    mixture = mixture_of([part(f"s{i}", w, [9]) for i, w in enumerate(weights)], size)
    assert (mixture.phases[0].cells.num_steps, mixture.phases[0].cells.quota_I) == (stretch_steps, quotas)


def test_lanes_stay_on_one_row_and_their_number_is_that_of_the_global_batch() -> None:
    """Own batches are stretches of 5 steps: one lane for each cell where 4 lanes a row were asked for."""
    parts = [part(n, w, [400] * 20, Interleaved(lanes_per_row=4)) for n, w in (("a", 0.7), ("b", 0.3))]
    mixture = mixture_of(parts, 32)
    assert mixture.phases[0].cells.num_steps == 5
    rows: dict[tuple[int, int, int], set[int]] = {}
    for step in range(200):
        refs = mixture.refs(step)
        uses = mixture.block_uses(refs)
        assert uses is not None
        for b, (source, lane, epoch) in enumerate(zip(refs.source_B, uses.lane_B, refs.epoch_B, strict=True)):
            rows.setdefault((int(source), int(lane), int(epoch)), set()).add(b)
        ids = refs.window_id_B
        assert ((uses.first_window_id_B <= ids) & (ids < uses.first_window_id_B + uses.size_B)).all()
    assert all(len(seen) == 1 for seen in rows.values())
    assert len(rows) == 32 * 5


def test_block_uses_of_a_rank_are_those_of_its_rows() -> None:
    """Sliced rows, epochs that end inside a batch, and a source without blocks."""
    parts = [part("a", 0.5, [21, 6], Interleaved(block_windows=4)), part("b", 0.5, [9, 4])]
    mixture = mixture_of(parts, 8)
    for step in range(20):
        whole = mixture.block_uses(mixture.refs(step))
        for rows in (slice(0, 3), slice(3, 5), slice(5, 8)):
            uses = mixture.block_uses(mixture.refs(step, rows))
            assert whole is not None and uses is not None
            assert uses.block_B.tolist() == whole.block_B[rows].tolist()
            assert uses.begins_B.tolist() == whole.begins_B[rows].tolist()
        assert whole.block_B[4:].tolist() == [-1] * 4 and whole.ends_B[4:].all()
        assert (whole.block_B[:4] >= 0).all()
    assert mixture_of([part("a", 1, [9])], 2).block_uses(mixture_of([part("a", 1, [9])], 2).refs(0)) is None
    assert len(mixture.refs(0, slice(2, 2))) == 0


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_each_block_is_decoded_by_one_rank_in_a_mixture_of_three_sources(world_size: int) -> None:
    """At most 1.1 ranks need a block, over whole epochs of three sources with interleaved order."""
    counts = [[285] * 50, [120, 300] * 20, [90] * 60]
    parts = [part(n, w, c, "interleaved") for n, w, c in zip("abc", (0.5, 0.3, 0.2), counts, strict=True)]
    mixture = mixture_of(parts, 64)
    rank_B = np.zeros(64, dtype=np.int64)
    for rank in range(world_size):
        rank_B[rank_rows(64, World(rank=rank, world_size=world_size))] = rank
    needed: set[tuple[int, int, int]] = set()
    for step in range(sum(counts[0]) // 32 + 1):
        refs = mixture.refs(step)
        uses = mixture.block_uses(refs)
        assert uses is not None
        is_first_B = refs.epoch_B == 0
        keys = (refs.source_B[is_first_B], uses.block_B[is_first_B], rank_B[is_first_B])
        needed |= set(zip(*(x.tolist() for x in keys), strict=True))
    num_blocks = len({key[:2] for key in needed})
    assert len(needed) / num_blocks <= 1.1


def test_seed_of_a_source_depends_on_its_name_alone() -> None:
    """Another place in the mixture, or other sources, change nothing; another name or run does."""
    assert source_seed(7, "a") == mixture_of([part("b", 0.5, [9]), part("a", 0.5, [9])], 4).seeds[1]
    assert len({source_seed(seed, name) for seed in (0, 7, -1) for name in ("a", "b", "ab", "")}) == 12
    assert all(0 <= source_seed(seed, "a") < 2**63 for seed in range(-50, 50))


# ---- bad input ----


@pytest.mark.parametrize(
    ("weights", "more", "message"),
    [
        ([0.7, 0.2], {}, r"sum to 0\.9 from train_step 0 on: got 'a': 0\.7, 'b': 0\.2, expected a sum of 1"),
        ([{0: 0.5, 9: 0.6}, 0.5], {}, r"sum to 1\.1 from train_step 9 on: got 'a': 0\.6, 'b': 0\.5"),
        ([1.5, -0.5], {}, r"weight=-0\.5 of source 'b' is invalid: expected a finite number of at least 0"),
        ([float("nan"), 1], {}, r"weight=nan of source 'a' is invalid"),
        ([float("inf"), 1], {}, r"weight=inf of source 'a' is invalid"),
        (["1", 0], {}, r"weight='1' of source 'a' is invalid"),
        ([True, 0], {}, r"weight=True of source 'a' is invalid"),
        ([1.0, 0], {}, r"the weight of source 'b' is 0 from beginning to end: leave the source out"),
        ([{5: 0.5}, 0.5], {}, r"source 'a' begins at train_step 5: expected one for train_step 0 too"),
        ([{}, 1], {}, r"source 'a' begins at no train_step"),
        ([{0: 0.5, -1: 0.5}, 0.5], {}, r"source 'a' changes at -1: expected train_steps"),
        ([{0: 0.5, 2.0: 0.5}, 0.5], {}, r"source 'a' changes at 2\.0"),
        ([{0: 0.5, 3: -1}, 0.5], {}, r"weight=-1 of source 'a' from train_step 3 on is invalid"),
        (
            [0.999, 0.001],
            {},
            r"source 'b' gets no row from train_step 0 on: its share of 0\.001 .* is less than one in the 32 rows of a stretch of 8",
        ),
        ([0.999, 0.001], {}, r"smallest share possible here is 1/32 = 0\.0312\. Raise .*Mixture\(stretch_steps=250\)"),
        ([0.5, 0.5], {"by": "windos"}, r"Mixture\(by='windos'\) is unknown: expected 'windows'"),
        (
            [0.5, 0.5],
            {"stretch_steps": 0},
            r"stretch_steps=0 is invalid: expected an int with 1 <= stretch_steps <= 4096",
        ),
        ([0.5, 0.5], {"global_batch_size": 0}, r"global_batch_size=0 is invalid"),
        ([0.5, 0.5], {"seed": "x"}, r"seed must be an int: got 'x'"),
    ],
)
def test_unusable_mixture_is_refused_by_name(weights: list[Any], more: dict[str, Any], message: str) -> None:
    """The message says which source, which weight, and what to do."""
    parts = [part(name, weight, [30]) for name, weight in zip("ab", weights, strict=False)]
    with pytest.raises(ConfigError, match=message):
        mixture_of(parts, **{"size": 4, **more} if "global_batch_size" not in more else {"size": 0})


def test_the_longer_stretch_a_message_proposes_works() -> None:
    """A share of a thousandth in batches of four: 250 train_steps."""
    parts = [part("a", 0.999, [30]), part("b", 0.001, [30])]
    assert mixture_of(parts, 4, stretch_steps=250).phases[0].cells.quota_I == (999, 1)


def test_continuous_sources_stay_on_their_rows() -> None:
    """Shares are rounded to rows of a train_step; another stretch is refused, and a share of no row too."""
    parts = [part("a", 0.7, [30, 30], "continuous"), part("b", 0.3, [40], "shuffled")]
    mixture = mixture_of(parts, 8)
    assert (mixture.phases[0].cells.num_steps, mixture.phases[0].cells.quota_I) == (1, (6, 2))
    with pytest.raises(ConfigError, match=r"stretch_steps=5 does not go with order 'continuous'"):
        mixture_of(parts, 8, stretch_steps=5)
    with pytest.raises(
        ConfigError,
        match=r"source 'b' gets no row from train_step 0 on: .*Raise its weight or global_batch_size, or leave it out",
    ):
        mixture_of(parts, 1)


def test_rows_and_train_steps_are_checked() -> None:
    """As by the sampler of one dataset."""
    mixture = mixture_of([part("a", 1, [30])], 4)
    with pytest.raises(ConfigError, match=r"train_step=-1 is invalid"):
        mixture.refs(-1)
    with pytest.raises(ConfigError, match=r"expected a slice without a step"):
        mixture.refs(0, slice(0, 4, 2))
    with pytest.raises(ConfigError, match=r"passes 2\*\*63.*train_step="):
        mixture.refs(2**70)


def test_config_json_records_sources_weights_and_stretch() -> None:
    """Weights as the fractions they are, by train_step."""
    mixture = mixture_of([part("a", {0: 0.7, 5: 0.25}, [30], "interleaved"), part("b", {0: 0.3, 5: 0.75}, [9])], 20)
    config = mixture.config_json()
    assert config["order"] == {"version": "mixture/1", "by": "windows", "stretch_steps": None}
    assert config["num_windows"] == 39
    assert config["sources"]["a"] == {
        "place": 0,
        "weight": {"0": "7/10", "5": "1/4"},
        "order": {"version": "interleaved/3", "block_windows": 16, "lanes_per_row": 4},
        "num_windows": 30,
        "window": {"num_steps": 1, "stride": 1, "dilation": 1, "pad": "none"},
    }
    assert config["sources"]["b"]["order"] == "shuffled/1"
    assert repr(mixture) == "MixtureSampler('a': 0.7, 'b': 0.3 of global_batch_size=20, seed=7)"
