"""Costs of rows and of frames before them, out of windows whose costs are known."""

from __future__ import annotations

import numpy as np
import pytest

from trajload.costs.fit import Measured, fit_kind, fit_kinds
from trajload.rng import key_rng


def test_rows_and_leads_are_told_apart() -> None:
    """Windows with few and with many frames before them give both costs back, in spite of some noise."""
    rng = key_rng(1, "test-fit")
    lead_N = np.array([0, 3, 20, 40, 7, 33])
    ns_N = (16 * 500 + lead_N * 200) * rng.uniform(0.97, 1.03, size=6)
    cost = fit_kind(np.full(6, 16), lead_N, ns_N)
    assert cost.row_ns == pytest.approx(500, rel=0.1)
    assert cost.lead_ns == pytest.approx(200, rel=0.1)


@pytest.mark.parametrize(
    ("lead", "ns", "expected"),
    [
        ([0, 0, 0], [160, 160, 160], (10, 6)),  # nothing before the rows: a guess
        ([16, 16], [320, 320], (12.5, 7.5)),  # nothing to tell them apart by
        ([0, 10], [320, 160], (480 / 38, 288 / 38)),  # noise says that leads save time
        ([0, 100], [16, 4000], None),  # noise says that rows are free
    ],
)
def test_costs_are_never_negative(lead: list[int], ns: list[float], expected: tuple[float, float] | None) -> None:
    """Where windows cannot tell, or noise misleads, costs stay sensible."""
    cost = fit_kind(np.full(len(ns), 16), np.array(lead), np.array(ns))
    assert cost.row_ns >= 0 and cost.lead_ns >= 0 and cost.row_ns + cost.lead_ns > 0
    if expected is not None:
        assert (cost.row_ns, cost.lead_ns) == pytest.approx(expected)


def test_noise_does_not_turn_the_split_over() -> None:
    """Where windows have nearly the same share of frames before them, an error of 5 % must not make rows free."""
    cost = fit_kind(np.full(4, 800), np.array([2380, 2400, 2400, 2420]), np.array([105e3, 100e3, 102e3, 111e3]))
    assert 0.4 < cost.lead_ns / cost.row_ns < 0.8
    assert cost.ns(800, 2400) == pytest.approx(104e3, rel=0.03)


def test_an_episode_costs_a_multiple_of_its_kind() -> None:
    """Episodes of one kind share the split; their own level comes from their own windows."""
    windows = {
        0: [Measured(1, 16, lead, 16 * 100 + lead * 50) for lead in (0, 10, 30)],
        1: [Measured(1, 16, lead, 2 * (16 * 100 + lead * 50)) for lead in (5, 20)],
        2: [Measured(1, 16, 0, 800.0)],
    }
    sums = {
        e: Measured(len(w), 16 * len(w), sum(x.num_lead for x in w), sum(x.ns for x in w)) for e, w in windows.items()
    }
    kinds, episodes = fit_kinds(sums, {0: "a", 1: "a", 2: "b"}, windows)
    assert set(kinds) == {"a", "b"}
    assert episodes[1].row_ns / episodes[0].row_ns == pytest.approx(2, rel=1e-3)
    assert episodes[1].lead_ns / episodes[0].lead_ns == pytest.approx(2, rel=1e-3)
    assert episodes[1].ns(16, 20) == pytest.approx(2 * (1600 + 1000), rel=0.02)
    assert (episodes[2].row_ns, episodes[2].lead_ns) == pytest.approx((50, 30))
