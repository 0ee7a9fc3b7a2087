"""The sampler of a mixture: exact quotas, own orders, positions both ways, phases, ranks."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import WindowError
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
    return mixture.phases[-1].begin + 2 * mixture.phases[-1].cells.num_steps + 3


def own_positions(mixture: MixtureSampler, num_steps: int) -> list[tuple[int, int]]:
    return [mixture.own_position(p) for p in range(num_steps * mixture.global_batch_size)]


# ---- laws ----


@given(mixture=mixtures())
@settings(max_examples=25, deadline=None)
def test_quotas_are_exact_in_every_stretch(mixture: MixtureSampler) -> None:
    """Each whole stretch of each phase holds its quota of each source; steps inside differ by one row at most."""
    num_steps, sources = num_steps_of(mixture), range(len(mixture.names))
    source_SB = np.array([mixture.refs(s).source_B for s in range(num_steps)])
    count_SI = np.array([[int((row == i).sum()) for i in sources] for row in source_SB])
    ends = [*(phase.begin for phase in mixture.phases[1:]), num_steps]
    for phase, end in zip(mixture.phases, ends, strict=True):
        period = phase.cells.num_steps
        assert sum(phase.cells.quota_I) == period * mixture.global_batch_size
        for begin in range(phase.begin, end - period + 1, period):
            count_TI = count_SI[begin : begin + period]
            assert count_TI.sum(axis=0).tolist() == list(phase.cells.quota_I)
            assert (count_TI.max(axis=0) - count_TI.min(axis=0) <= 1).all()


@given(mixture=mixtures(with_phases=False))
@settings(max_examples=25, deadline=None)
def test_a_source_keeps_to_the_same_rows(mixture: MixtureSampler) -> None:
    """In every step of a stretch its rows are the same but for one at each end, and every stretch is alike."""
    period = mixture.phases[0].cells.num_steps
    source_SB = np.array([mixture.refs(s).source_B for s in range(2 * period)])
    assert np.array_equal(source_SB[:period], source_SB[period:])
    assert (np.diff(source_SB, axis=1) >= 0).all()
    for source in range(len(mixture.names)):
        is_own_SB = source_SB == source
        assert int((is_own_SB.any(axis=0) & ~is_own_SB.all(axis=0)).sum()) <= 2


@given(mixture=mixtures())
@settings(max_examples=25, deadline=None)
def test_each_source_comes_in_the_order_it_has_alone(mixture: MixtureSampler) -> None:
    """The windows of a source, read off the batches, are those of its own sampler, position after position."""
    own = own_positions(mixture, num_steps_of(mixture))
    alone: dict[tuple[int, int, int], Sampler] = {}
    for step in range(num_steps_of(mixture)):
        refs, phase = mixture.refs(step), mixture.phase_of(step)
        rows = rows_of(refs)
        for b, (source, position) in enumerate(own[step * len(refs) : (step + 1) * len(refs)]):
            assert source == refs.source_B[b]
            key = (source, phase.cells.quota_I[source], phase.cells.num_steps)
            if key not in alone:
                found = phase.samplers[source]
                assert found is not None
                seed = source_seed(7, mixture.names[source])
                alone[key] = Sampler(found.table, order=found.order_config, seed=seed, global_batch_size=key[1])
            own_step, row = divmod(position, key[1])
            expected = alone[key].refs(own_step, slice(row, row + 1))
            assert rows_of(expected)[0][2:] == rows[b][2:]


@given(mixture=mixtures())
@settings(max_examples=25, deadline=None)
def test_positions_of_mixture_and_sources_map_both_ways(mixture: MixtureSampler) -> None:
    """Every position has a place in its source's sequence; places rise without gaps inside a phase, and lead back."""
    num_steps = num_steps_of(mixture)
    own = own_positions(mixture, num_steps)
    assert [mixture.position(*pair) for pair in own] == list(range(len(own)))
    for source in range(len(mixture.names)):
        places = [place for number, place in own if number == source]
        assert places == sorted(set(places))
        jumps = [b for a, b in itertools.pairwise(places) if b != a + 1]
        bases = {phase.base_I[source] for phase in mixture.phases}
        assert set(jumps) <= bases, "own positions jump at a change of weights only"
        assert all(base % mixture.samplers[source].num_windows == 0 for base in jumps), "and then to a new epoch"


@given(mixture=mixtures(), world_size=st.integers(1, 64))
@settings(max_examples=25, deadline=None)
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
@settings(max_examples=25, deadline=None)
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
    changed = mixture_of(parts, mixture.global_batch_size, stretch_steps=mixture.stretch_steps)
    for before in range(step):
        assert rows_of(changed.refs(before)) == rows_of(mixture.refs(before))


@given(
    counts=COUNTS,
    other=COUNTS,
    name=st.sampled_from(["sequential", "shuffled", "interleaved"]),
    quota=st.integers(1, 7),
)
@settings(max_examples=25, deadline=None)
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
@settings(max_examples=25, deadline=None)
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
        assert (mixture.phases[0].cells.num_steps, mixture.refs(2).epoch_B.tolist()) == (1, [0] * 8)
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


def test_stretches_are_chosen_anew_where_weights_change() -> None:
    """A phase that needs longer stretches leaves those before it as they are; equal shares of rows keep no lanes then."""
    before = [part("a", 0.5, [90, 30], "interleaved"), part("b", 0.5, [60], "interleaved")]
    after = [part("a", {0: 0.5, 4: 0.7}, [90, 30], "interleaved"), part("b", {0: 0.5, 4: 0.3}, [60], "interleaved")]
    first, second = mixture_of(before, 8), mixture_of(after, 8)
    assert [phase.cells.num_steps for phase in second.phases] == [1, 5]
    for step in range(4):
        assert rows_of(second.refs(step)) == rows_of(first.refs(step))
    assert rows_of(second.refs(4)) != rows_of(first.refs(4))
