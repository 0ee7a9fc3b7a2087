"""Alignment by every rule, against a search through all rows; over ten hours; and messages with their values."""

# Shapes: T times, N rows, K rows of all intervals

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.align.clocked import ClockedRows, align_clocked, interval_rows, linear_rows, mix_rows
from trajload.errors import AlignError
from trajload.rng import key_rng
from trajload.spec import Align, Signal

NUM_CLOCKS, NUM_TIMES = 1000, 100
"""100,000 random cases for each rule."""


def jittered_clock(case: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return a clock (N,) with jitter, lost rows, an offset and perhaps unix times; times (T,) to look up; its period."""
    rng = key_rng(48, "test-clock", case)
    period = int(rng.choice([10, 5_000_000, 33_333_333, 100_000_000]))
    base = int(rng.choice([0, -(10**7), 1_700_000_000 * 10**9]))
    num_rows = int(rng.integers(1, 60))
    jitter_N = rng.integers(-(period // 2) + 1, period // 2, num_rows)
    time_N = base + period * np.arange(num_rows, dtype=np.int64) + jitter_N
    kept_N = rng.random(num_rows) > 0.15
    kept_N[rng.integers(num_rows)] = True
    time_N = np.unique(time_N[kept_N])
    time_T = base + rng.integers(-3 * period, (num_rows + 3) * period, NUM_TIMES)
    time_T[:30] = rng.choice(time_N, 30)  # on a row
    if len(time_N) > 1:
        left = rng.integers(len(time_N) - 1, size=20)
        time_T[30:50] = (time_N[left] + time_N[left + 1]) // 2  # ties, where the sum is even
    return time_N, np.sort(time_T), period


def search(time_N: np.ndarray, time_T: np.ndarray, align: str, tolerance: int | None) -> tuple[list, list, list]:
    """Return (row or pair of rows, is a miss, age) of each time, by looking at every row of the clock."""
    gap_TN = np.abs(time_N[None, :] - time_T[:, None])
    before_TN = time_N[None, :] <= time_T[:, None]
    rows, misses, ages = [], [], []
    for gap_N, before_N, time in zip(gap_TN, before_TN, time_T, strict=True):
        earlier, later = np.flatnonzero(before_N), np.flatnonzero(~before_N)
        if align == "nearest":
            row = int(np.argmin(gap_N))  # the first of equals is the earlier
            is_miss = tolerance is not None and gap_N[row] > tolerance
            found: int | tuple[int, int] = row
        elif align == "exact":
            is_miss, row = not (gap_N == 0).any(), int(np.argmin(gap_N))
            found = row
        elif align == "previous":
            is_miss = not len(earlier) or (tolerance is not None and gap_N[earlier[-1]] > tolerance)
            found = row = int(earlier[-1]) if len(earlier) else 0
        else:
            row = int(earlier[-1]) if len(earlier) else 0
            on_row = len(earlier) > 0 and gap_N[row] == 0
            is_miss = not on_row and (not len(earlier) or not len(later))
            right = row if on_row else int(later[0]) if len(later) else row
            is_miss = is_miss or (tolerance is not None and bool(max(gap_N[row], gap_N[right]) > tolerance))
            found = (row, right)
        rows.append(found)
        misses.append(bool(is_miss))
        ages.append(0 if is_miss else int(time - time_N[row]))
    return rows, misses, ages


@pytest.mark.parametrize("align", ["nearest", "previous", "exact", "linear"])
def test_rows_equal_a_search_through_all_rows(align: Align) -> None:
    """100,000 times on jittered clocks with lost rows: row, miss and age are what looking at every row finds."""
    num_misses = num_hits = 0
    for case in range(NUM_CLOCKS):
        time_N, time_T, period = jittered_clock(case)
        tolerance = [None, 0, period // 4, period, 3 * period][case % 5]
        found = align_clocked(time_T, np.zeros(len(time_T), bool), time_N, Signal(align=align), tolerance_ns=tolerance)
        rows, misses, ages = search(time_N, time_T, align, tolerance)
        assert found.is_pad_T.tolist() == misses, case
        assert found.age_ns_T.tolist() == ages, case
        hit_T = ~np.array(misses)
        if align == "linear":
            got_T2 = np.stack([found.rows[: len(time_T)], found.rows[len(time_T) :]], axis=1)
            assert got_T2[hit_T].tolist() == np.array(rows)[hit_T].tolist(), case
        else:
            assert found.rows[hit_T].tolist() == np.array(rows)[hit_T].tolist(), case
        assert found.rows.min() >= 0
        assert found.rows.max() < len(time_N)
        num_misses += int((~hit_T).sum())
        num_hits += int(hit_T.sum())
    assert min(num_misses, num_hits) > 10_000


def test_interval_rows_equal_a_search_through_all_rows() -> None:
    """100,000 intervals: the rows of each place are those with since < time <= now, in order, none outside the episode."""
    num_rows = num_empty = 0
    for case in range(NUM_CLOCKS):
        time_N, time_T, period = jittered_clock(case)
        since_T = time_T - key_rng(48, "test-since", case).integers(0, 4 * period, len(time_T))
        is_pad_T = np.arange(len(time_T)) % 9 == 8
        found = interval_rows(since_T, time_T, is_pad_T, time_N)
        assert found.count_T is not None
        inside_TN = (time_N[None, :] > since_T[:, None]) & (time_N[None, :] <= time_T[:, None]) & ~is_pad_T[:, None]
        place_K, row_K = np.nonzero(inside_TN)
        assert found.rows.tolist() == row_K.tolist(), case
        assert found.count_T.tolist() == np.bincount(place_K, minlength=len(time_T)).tolist(), case
        assert found.is_pad_T.tolist() == (found.count_T == 0).tolist()
        newest = [
            int(time_T[t] - time_N[np.flatnonzero(inside_TN[t])[-1]]) if inside_TN[t].any() else 0
            for t in range(len(time_T))
        ]
        assert found.age_ns_T.tolist() == newest
        num_rows += len(row_K)
        num_empty += int((found.count_T == 0).sum())
    assert min(num_rows, num_empty) > 10_000


@given(st.lists(st.integers(-(2**60), 2**60), min_size=2, max_size=6, unique=True).map(sorted), st.data())
@settings(max_examples=300, deadline=None)
def test_linear_weights_are_quotients_of_exact_differences(times: list[int], data: st.DataObject) -> None:
    """The weight is (t - before) / (after - before), as close to the exact fraction as two roundings allow."""
    time = data.draw(st.integers(times[0], times[-1]))
    found = linear_rows(np.array([time]), np.zeros(1, bool), np.array(times), None)
    assert found.weight_T is not None
    left, right = found.rows.tolist()
    exact = Fraction(time - times[left], times[right] - times[left]) if left != right else Fraction(0)
    assert found.weight_T[0] == pytest.approx(float(exact), rel=1e-15, abs=0)
    assert not found.is_pad_T[0]


def test_linear_values_do_not_drift_over_ten_hours() -> None:
    """A ramp sampled at 200 Hz in unix time gives the same values at its end as at its beginning, step for step."""
    num_rows = 10 * 3600 * 200
    base = 1_700_000_000 * 10**9
    time_N = base + np.arange(num_rows, dtype=np.int64) * 5_000_000
    hour_steps = np.arange(30, dtype=np.int64) * 33_333_333
    weights = []
    for begin in (0, (num_rows - 300) * 5_000_000 // 15_000_000 * 15_000_000):
        found = linear_rows(base + begin + hour_steps, np.zeros(30, bool), time_N, 5_000_000)
        assert not found.is_pad_T.any()
        weights.append(found.weight_T)
        assert (found.rows[:30] - begin // 5_000_000).tolist() == (hour_steps // 5_000_000).tolist()
        np.testing.assert_array_equal(found.weight_T, (hour_steps % 5_000_000) / 5_000_000)
    np.testing.assert_array_equal(*weights)


def test_mixed_rows_of_hand_checked_values() -> None:
    """A quarter of the way from 1 to 5 is 2; weight 0 takes the row before to the bit, whatever the other holds."""
    values = np.array([[1.0], [0.1], [3.0], [5.0], [np.nan], [7.0]], dtype=np.float32)
    out = np.empty((3, 1), np.float32)
    mix_rows(values, np.array([0.25, 0.0, 0.5]), out)
    assert out.tolist() == [[2.0], [np.float32(0.1)], [5.0]]


def test_hand_checked_rows_of_every_rule() -> None:
    """Rows at 0, 10, 20, 40; steps at 4, 10, 15, 30, 41; tolerance 6."""
    clock, times = np.array([0, 10, 20, 40]), np.array([4, 10, 15, 30, 41])

    def rows(align: Align) -> ClockedRows:
        none = np.zeros(5, bool)
        since = np.array([-6, 4, 10, 15, 30])
        return align_clocked(times, none, clock, Signal(align=align), tolerance_ns=6, since_T=since)

    nearest, previous, exact, linear, interval = map(rows, ("nearest", "previous", "exact", "linear", "interval"))
    assert (nearest.rows.tolist(), nearest.is_pad_T.tolist()) == ([0, 1, 1, 2, 3], [False, False, False, True, False])
    assert (previous.rows.tolist(), previous.is_pad_T.tolist()) == ([0, 1, 1, 2, 3], [False, False, False, True, False])
    assert nearest.age_ns_T.tolist() == previous.age_ns_T.tolist() == [4, 0, 5, 0, 1]
    assert exact.is_pad_T.tolist() == [True, False, True, True, True]
    assert linear.rows.reshape(2, 5).T.tolist()[:3] == [[0, 1], [1, 1], [1, 2]]
    assert linear.is_pad_T.tolist() == [False, False, False, True, True]
    assert linear.weight_T is not None
    assert linear.weight_T[:3].tolist() == [0.4, 0.0, 0.5]
    assert interval.rows.tolist() == [0, 1, 2, 3]
    assert interval.count_T is not None
    assert interval.count_T.tolist() == [1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("align", "time", "message"),
    [
        ("exact", 11, r"step 7 at 11 ns has no row at exactly this time: the nearest one, row 1, stands at 10 ns, 1 ns away"),
        ("linear", 13, r"step 7 at 13 ns has no row near it: the nearest one, row 2, stands at 20 ns, 7 ns away; expected at most 6 ns"),
        ("linear", 23, r"step 7 at 23 ns has no row near it: the nearest one, row 2, stands at 20 ns, 3 ns away"),
        ("interval", 13, r"step 7 at 13 ns has no row in its interval: expected at least one in \(11, 13\] ns"),
    ],
)  # fmt: skip
def test_missed_rows_under_error_are_named(align: Align, time: int, message: str) -> None:
    """The message says which step, at what time, what stands next to it, and what was expected."""
    with pytest.raises(AlignError, match=message):
        align_clocked(
            np.array([time]),
            np.zeros(1, bool),
            np.array([0, 10, 20]),
            Signal(align=align, on_miss="error"),
            tolerance_ns=6,
            since_T=np.array([time - 2]),
            steps_T=np.array([7]),
        )


@pytest.mark.parametrize("align", ["nearest", "linear", "interval"])
def test_stream_without_rows_is_an_error_of_every_rule(align: Align) -> None:
    """There is nothing to align to; a loader treats such a stream as missing."""
    with pytest.raises(AlignError, match="got 0 timestamps, expected at least 1"):
        align_clocked(
            np.array([0]), np.zeros(1, bool), np.empty(0, np.int64), Signal(align=align), tolerance_ns=1, since_T=np.array([0])
        )  # fmt: skip


def test_padding_takes_the_nearest_real_place_under_linear_and_nothing_under_interval() -> None:
    """Front padding repeats the first real place, end padding the last; an interval outside the episode is empty."""
    is_pad = np.array([True, False, False, True])
    times, clock = np.array([0, 5, 12, 12]), np.array([0, 10, 20])
    linear = linear_rows(times, is_pad, clock, None)
    assert linear.rows.reshape(2, 4).T.tolist() == [[0, 1], [0, 1], [1, 2], [1, 2]]
    assert linear.weight_T is not None
    assert linear.weight_T.tolist() == [0.5, 0.5, 0.2, 0.2]
    assert linear.is_pad_T.tolist() == is_pad.tolist()
    interval = interval_rows(times - 10, times, is_pad, clock)
    assert interval.count_T is not None
    assert (interval.rows.tolist(), interval.count_T.tolist()) == ([0, 1], [0, 1, 1, 0])
