"""The step clock: exact and uniform, or the timestamp column where that says otherwise."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from trajload.errors import SourceError
from trajload.sources.lerobot_times import StepTimes


def times(time_N, fps=20, steps=None):
    clock = StepTimes(Fraction(fps), 1)
    steps = np.arange(len(time_N)) if steps is None else np.asarray(steps)
    return clock.times_ns(0, steps, lambda: time_N)


def test_float32_timestamps_give_exact_uniform_nanoseconds():
    """Rounding of float32 seconds does not reach the clock."""
    got = times((np.arange(500) / 30).astype(np.float32), 30)
    assert got[:3].tolist() == [0, 33_333_333, 66_666_667] and got[300] == 10_000_000_000
    assert got.dtype == np.int64


def test_offset_timestamps_are_taken_as_they_stand():
    """Rows that start one period late (as in GR00T data) keep their times."""
    assert times(np.array([0.05, 0.1, 0.15]))[:2].tolist() == [50_000_000, 100_000_000]


@pytest.mark.parametrize(("late_s", "expected"), [(0.0009, 100_000_000), (0.0011, 101_100_000)])
def test_one_millisecond_decides(late_s, expected):
    """Up to 1 ms off the clock is uniform; beyond it the column rules the whole episode."""
    time_N = np.arange(5) / 20
    time_N[2] += late_s
    assert times(time_N)[2] == expected


def test_hours_of_float32_are_still_uniform():
    """After hours float32 cannot tell 1 ms: its own rounding is no deviation."""
    time_N = (np.arange(18_000 * 2) / 2).astype(np.float32)
    assert times(time_N, 2)[-1] == (len(time_N) - 1) * 500_000_000


def test_no_timestamp_column_is_uniform():
    """A folder without the column has its rate."""
    clock = StepTimes(Fraction(20), 1)
    assert clock.times_ns(0, np.array([[3]]), lambda: None).tolist() == [[150_000_000]]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_timestamp_that_is_no_number_names_its_step(value):
    """NaN is no time."""
    time_N = np.arange(5) / 20
    time_N[3] = value
    with pytest.raises(SourceError, match=rf"timestamp of step 3 is {value}"):
        times(time_N)


def test_uniform_episode_is_read_once():
    """What was found uniform is not read again."""
    clock, reads = StepTimes(Fraction(20), 1), []

    def column():
        reads.append(1)
        return np.arange(5) / 20

    for _ in range(3):
        clock.times_ns(0, np.array([4]), column)
    assert len(reads) == 1


def test_rows_in_falling_order_are_refused_naming_the_step() -> None:
    """Row i would not be step i: no data are better than data under other times."""
    times = StepTimes(Fraction(10), 2)
    falling = np.array([0.0, 0.1, 0.3, 0.2], dtype=np.float32)
    with pytest.raises(SourceError, match=r"timestamps fall at step 3: got 0\.2\d* s after 0\.3\d* s"):
        times.times_ns(0, np.arange(4), lambda: falling)
    equal = np.array([0.0, 0.5, 0.5, 0.6])
    assert times.times_ns(1, np.arange(4), lambda: equal).tolist() == [0, 500_000_000, 500_000_000, 600_000_000]
