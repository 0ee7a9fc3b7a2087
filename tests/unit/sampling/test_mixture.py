"""The sampler of a mixture: exact quotas, own orders, positions both ways, phases, ranks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError, WindowError
from trajload.sampling.assign import rank_rows
from trajload.sampling.mixture import MixturePart, MixtureSampler, source_seed
from trajload.sampling.orders import Interleaved, OrderConfig, order_config
from trajload.sampling.sampler import BatchRefs, Sampler
from trajload.sampling.windows import WindowTable
from trajload.spec import Window
from trajload.world import World

ORDERS: dict[str, Any] = {
    "sequential": "sequential",
    "shuffled": "shuffled",
    "interleaved": Interleaved(block_windows=4, lanes_per_row=3),
    "continuous": "continuous",
}
COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any)


def part(name: str, weight: Any, counts: list[int], order: OrderConfig | str = "shuffled") -> MixturePart:
    """Return a source whose episodes have these numbers of windows."""
    table = WindowTable(np.asarray(counts), Window(num_steps=1))
    return MixturePart(name=name, weight=weight, table=table, order=order_config(order))


def mixture_of(parts: list[MixturePart], size: int, **more: Any) -> MixtureSampler:
    return MixtureSampler(parts, **{"by": "windows", "seed": 7, "global_batch_size": size, **more})


def rows_of(refs: BatchRefs) -> list[tuple[int, ...]]:
    arrays = (refs.position_B, refs.source_B, refs.epoch_B, refs.window_id_B, refs.episode_B, refs.start_B)
    return list(zip(*(x.tolist() for x in arrays), strict=True))


@st.composite
def mixtures(draw: st.DrawFn, *, with_phases: bool = True) -> MixtureSampler:
    """Return a mixture of one to four sources with whole or rounded shares, and up to three phases."""
    num = draw(st.integers(1, 4))
    size = draw(st.integers(num, 24))
    begins = sorted({0, *draw(st.lists(st.integers(1, 40), max_size=2))}) if with_phases else [0]
    shares = [draw(st.lists(st.integers(1, 5), min_size=num, max_size=num)) for _ in begins]
    if num > 1 and len(begins) > 1 and draw(st.booleans()):
        shares[draw(st.integers(0, len(begins) - 2))][0] = 0  # a source that joins, or pauses
    order = ORDERS[draw(st.sampled_from(sorted(ORDERS)))]
    parts = [
        part(
            f"s{i}",
            {begin: Fraction(row[i], sum(row)) for begin, row in zip(begins, shares, strict=True)},
            draw(COUNTS),
            order,
        )
        for i in range(num)
    ]
    stretch_steps = None if order == "continuous" else draw(st.sampled_from([None, 10, 13]))
    if order == "continuous":
        size *= 5  # a stretch of one train_step must hold a row of each source
    return mixture_of(parts, size, by=draw(st.sampled_from(["windows"])), stretch_steps=stretch_steps)


def num_steps_of(mixture: MixtureSampler) -> int:
    """Return train_steps enough to see every phase, and two stretches of the last."""
    return mixture.phases[-1].begin + 2 * mixture.stretch_steps + 3


def own_positions(mixture: MixtureSampler, num_steps: int) -> list[tuple[int, int]]:
    return [mixture.own_position(p) for p in range(num_steps * mixture.global_batch_size)]


# ---- laws ----


@given(mixture=mixtures())
@settings(max_examples=60, deadline=None)
def test_quotas_are_exact_in_every_stretch(mixture: MixtureSampler) -> None:
    """Each whole stretch of each phase holds its quota of each source; steps inside differ by one row at most."""
    num_steps, sources = num_steps_of(mixture), range(len(mixture.names))
    source_SB = np.array([mixture.refs(s).source_B for s in range(num_steps)])
    count_SI = np.array([[int((row == i).sum()) for i in sources] for row in source_SB])
    ends = [*(phase.begin for phase in mixture.phases[1:]), num_steps]
    for phase, end in zip(mixture.phases, ends, strict=True):
        assert sum(phase.cells.quota_I) == mixture.stretch_steps * mixture.global_batch_size
        for begin in range(phase.begin, end - mixture.stretch_steps + 1, mixture.stretch_steps):
            count_TI = count_SI[begin : begin + mixture.stretch_steps]
            assert count_TI.sum(axis=0).tolist() == list(phase.cells.quota_I)
            assert (count_TI.max(axis=0) - count_TI.min(axis=0) <= 1).all()


@given(mixture=mixtures(with_phases=False))
@settings(max_examples=60, deadline=None)
def test_a_source_keeps_to_the_same_rows(mixture: MixtureSampler) -> None:
    """In every step of a stretch its rows are the same but for one at each end, and every stretch is alike."""
    period = mixture.stretch_steps
    source_SB = np.array([mixture.refs(s).source_B for s in range(2 * period)])
    assert np.array_equal(source_SB[:period], source_SB[period:])
    assert (np.diff(source_SB, axis=1) >= 0).all()
    for source in range(len(mixture.names)):
        is_own_SB = source_SB == source
        assert int((is_own_SB.any(axis=0) & ~is_own_SB.all(axis=0)).sum()) <= 2


@given(mixture=mixtures())
@settings(max_examples=60, deadline=None)
def test_each_source_comes_in_the_order_it_has_alone(mixture: MixtureSampler) -> None:
    """The windows of a source, read off the batches, are those of its own sampler, position after position."""
    own = own_positions(mixture, num_steps_of(mixture))
    for step in range(num_steps_of(mixture)):
        refs, phase = mixture.refs(step), mixture.phase_of(step)
        for b, (source, position) in enumerate(own[step * len(refs) : (step + 1) * len(refs)]):
            assert source == refs.source_B[b]
            table = mixture.samplers[source].table
            alone = Sampler(
                table,
                order=mixture.orders[source],
                seed=source_seed(7, mixture.names[source]),
                global_batch_size=phase.cells.quota_I[source],
            )
            own_step, row = divmod(position, alone.global_batch_size)
            expected = alone.refs(own_step, slice(row, row + 1))
            assert rows_of(expected)[0][2:] == rows_of(refs)[b][2:]


@given(mixture=mixtures())
@settings(max_examples=60, deadline=None)
def test_positions_of_mixture_and_sources_map_both_ways(mixture: MixtureSampler) -> None:
    """Every position has a place in its source's sequence; places rise without gaps inside a phase, and lead back."""
    num_steps = num_steps_of(mixture)
    own = own_positions(mixture, num_steps)
    assert [mixture.position(*pair) for pair in own] == list(range(len(own)))
    for source in range(len(mixture.names)):
        places = [place for number, place in own if number == source]
        assert places == sorted(set(places))
        jumps = [b for a, b in zip(places, places[1:], strict=False) if b != a + 1]
        bases = {phase.base_I[source] for phase in mixture.phases}
        assert set(jumps) <= bases, "own positions jump at a change of weights only"
        assert all(base % mixture.samplers[source].num_windows == 0 for base in jumps), "and then to a new epoch"


@given(mixture=mixtures(), world_size=st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_the_global_batch_does_not_depend_on_the_number_of_ranks(mixture: MixtureSampler, world_size: int) -> None:
    """Rows of all ranks, joined, are the global batch."""
    world_size = min(world_size, mixture.global_batch_size)
    for step in (0, 1, mixture.phases[-1].begin, 10**6):
        parts = [
            mixture.refs(step, rank_rows(mixture.global_batch_size, World(rank=rank, world_size=world_size)))
            for rank in range(world_size)
        ]
        assert [row for refs in parts for row in rows_of(refs)] == rows_of(mixture.refs(step))


@given(mixture=mixtures(), step=st.integers(1, 60), data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_weight_at_s_changes_nothing_before_s(
    mixture: MixtureSampler, step: int, data: st.DataObject
) -> None:
    """With one more change of weights every batch before it stays as it is, to the byte."""
    num = len(mixture.names)
    row = data.draw(st.lists(st.integers(1, 5), min_size=num, max_size=num), label="new weights")
    parts = []
    for i, old in enumerate(mixture._parts):
        assert isinstance(old.weight, dict)
        kept = {s: w for s, w in old.weight.items() if s < step}
        weight = {**kept, step: Fraction(row[i], sum(row))}
        parts.append(MixturePart(name=old.name, weight=weight, table=old.table, order=old.order))
    # The stretch is part of what is fixed: the least one that suits all phases may differ with another phase.
    changed = mixture_of(parts, mixture.global_batch_size, stretch_steps=mixture.stretch_steps)
    for before in range(step):
        assert rows_of(changed.refs(before)) == rows_of(mixture.refs(before))


@given(
    counts=COUNTS,
    other=COUNTS,
    name=st.sampled_from(["sequential", "shuffled", "interleaved"]),
    quota=st.integers(1, 7),
)
@settings(max_examples=60, deadline=None)
def test_each_window_of_a_source_comes_once_in_each_of_its_epochs(
    counts: list[int], other: list[int], name: str, quota: int
) -> None:
    """Whatever the other sources do, and through changes of weights that leave the quota as it is."""
    weights = [Fraction(quota, 8), Fraction(8 - quota, 8)]
    parts = [part("a", weights[0], counts, ORDERS[name]), part("b", weights[1], other, ORDERS[name])]
    mixture = mixture_of(parts, 4)
    num_windows = sum(counts)
    seen: dict[int, list[int]] = {}
    for step in range(-(-2 * num_windows * 2 // quota) + 2):
        refs = mixture.refs(step)
        for epoch, window in zip(refs.epoch_B[refs.source_B == 0], refs.window_id_B[refs.source_B == 0], strict=True):
            seen.setdefault(int(epoch), []).append(int(window))
    for epoch in (0, 1):
        assert sorted(seen[epoch]) == list(range(num_windows))


@given(mixture=mixtures(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_windows_lead_back_to_their_positions(mixture: MixtureSampler, data: st.DataObject) -> None:
    """position -> (source, epoch, window) -> position, in every phase; a window cut off with its epoch says so."""
    step = data.draw(st.integers(0, num_steps_of(mixture)), label="train_step")
    for position, source, epoch, window, _, _ in rows_of(mixture.refs(step)):
        assert mixture.position_of(source, epoch, window) == position


# ---- phases ----


def test_a_source_whose_lanes_change_begins_a_new_epoch_and_others_go_on() -> None:
    """Under interleaved another quota means other lanes; shuffled order knows no batch, so it goes on."""
    weights: list[Any] = [{0: 0.5, 3: 0.25}, {0: 0.5, 3: 0.75}]
    for order, epochs, places in (("interleaved", {1}, 100), ("shuffled", {0}, 12)):
        parts = [part("a", weights[0], [100], ORDERS[order]), part("b", weights[1], [400], ORDERS[order])]
        mixture = mixture_of(parts, 8)
        assert (mixture.stretch_steps, mixture.refs(2).epoch_B.tolist()) == (1, [0] * 8)
        assert set(mixture.refs(3).epoch_B[:2].tolist()) == epochs
        assert mixture.own_position(3 * 8) == (0, places)
    assert [phase.begin for phase in mixture.phases] == [0, 3]


def test_a_window_cut_off_with_its_epoch_is_refused() -> None:
    """After the change of weights the first epoch of the source never ends."""
    weights: list[Any] = [{0: 0.5, 3: 0.25}, {0: 0.5, 3: 0.75}]
    mixture = mixture_of([part("a", weights[0], [100], "interleaved"), part("b", weights[1], [400], "interleaved")], 8)
    seen = {int(w) for s in range(3) for w in mixture.refs(s).window_id_B[:4]}
    unseen = next(w for w in range(100) if w not in seen)
    with pytest.raises(WindowError, match=rf"window {unseen} of source 'a' does not come in its epoch 0"):
        mixture.position_of(0, 0, unseen)
    with pytest.raises(WindowError, match=r"position 50 of source 'a' never comes"):
        mixture.position(0, 50)


def test_a_source_that_joins_later_begins_with_its_first_window() -> None:
    """Weight 0 until then: no row, and no window lost."""
    mixture = mixture_of(
        [part("a", {0: 1, 5: 0.5}, [30], "sequential"), part("b", {0: 0, 5: 0.5}, [30], "sequential")], 4
    )
    assert [set(mixture.refs(s).source_B.tolist()) for s in range(6)] == [{0}] * 5 + [{0, 1}]
    assert mixture.refs(5).window_id_B.tolist() == [20, 21, 0, 1]
    assert mixture.shares(4) == {"a": 1.0, "b": 0.0} and mixture.shares(5) == {"a": 0.5, "b": 0.5}


def test_a_phase_with_equal_weights_is_no_change() -> None:
    """A step at which nothing changes does not cut a stretch."""
    parts = [part("a", {0: 0.3, 7: 0.3}, [30]), part("b", {0: 0.7}, [30])]
    assert len(mixture_of(parts, 4).phases) == 1


def test_a_train_step_far_away_is_computed_at_once() -> None:
    """Positions beyond int64 are exact, in the last of several phases."""
    parts = [part("a", {0: 0.3, 10**9: 0.5}, [30, 7]), part("b", {0: 0.7, 10**9: 0.5}, [11])]
    mixture = mixture_of(parts, 10)
    step = 10**18
    refs = mixture.refs(step)
    assert refs.position_B.tolist() == list(range(step * 10, step * 10 + 10))
    own = [mixture.own_position(p) for p in refs.position_B.tolist()]
    assert [mixture.position(*pair) for pair in own] == refs.position_B.tolist()
    assert [s for s, _ in own] == refs.source_B.tolist()
    assert own[0][1] == 3 * 10**9 + 5 * (step - 10**9)
    assert refs.epoch_B.tolist() == [p // (37, 11)[s] for s, p in own]


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
    assert (mixture.stretch_steps, mixture.phases[0].cells.quota_I) == (stretch_steps, quotas)


def test_lanes_stay_on_one_row_and_their_number_is_that_of_the_global_batch() -> None:
    """Own batches are stretches of 5 steps: one lane for each cell where 4 lanes a row were asked for."""
    parts = [part(n, w, [400] * 20, Interleaved(lanes_per_row=4)) for n, w in (("a", 0.7), ("b", 0.3))]
    mixture = mixture_of(parts, 32)
    assert mixture.stretch_steps == 5
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
    needed: set[tuple[int, int, int, int]] = set()
    for step in range(max(sum(c) for c in counts) // 32 + 1):
        for rank in range(world_size):
            refs = mixture.refs(step, rank_rows(64, World(rank=rank, world_size=world_size)))
            uses = mixture.block_uses(refs)
            assert uses is not None
            needed |= {
                (int(s), int(e), int(b), rank)
                for s, e, b in zip(refs.source_B, refs.epoch_B, uses.block_B, strict=True)
                if e == 0
            }
    num_blocks = len({key[:3] for key in needed})
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
            r"source 'b' gets no row: its share of 0\.001 .* is less than one in the 32 rows of a stretch of 8",
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
    assert (mixture.stretch_steps, mixture.phases[0].cells.quota_I) == (1, (6, 2))
    with pytest.raises(ConfigError, match=r"stretch_steps=5 does not go with order 'continuous'"):
        mixture_of(parts, 8, stretch_steps=5)
    with pytest.raises(ConfigError, match=r"source 'b' gets no row: .* or leave it out"):
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
    assert config["order"] == {"version": "mixture/1", "by": "windows", "stretch_steps": 1}
    assert config["num_windows"] == 39
    assert config["sources"]["a"] == {
        "weight": {"0": "7/10", "5": "1/4"},
        "order": {"version": "interleaved/1", "block_windows": 16, "lanes_per_row": 4},
        "num_windows": 30,
        "window": {"num_steps": 1, "stride": 1, "dilation": 1, "pad": "none"},
    }
    assert config["sources"]["b"]["order"] == "shuffled/1"
    assert repr(mixture) == "MixtureSampler('a': 0.7, 'b': 0.3 of global_batch_size=20, seed=7)"
