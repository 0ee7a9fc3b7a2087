"""Laws of alignment, against brute force in Python integers."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.align.rows import (
    clocked_rows,
    default_tolerance_ns,
    rows_to_zero,
    step_flags,
    stepwise_rows,
    window_steps,
)
from trajload.errors import AlignError, ConfigError, WindowError
from trajload.spec import Signal, StreamSpec, UniformClock, Window
from trajload.types import Modality

NO_PAD = np.zeros(1, dtype=bool)


def spec_of(rate_hz: float | None) -> StreamSpec:
    return StreamSpec(
        name="imu",
        modality=Modality.PROPRIOCEPTION,
        encoding="npy",
        shape=(3,),
        dtype="float32",
        clock="clocked",
        rate_hz=rate_hz,
    )


# ---- stepwise ----


@given(
    num_steps_episode=st.integers(1, 30),
    num_steps=st.integers(1, 10),
    dilation=st.integers(1, 4),
    start=st.integers(0, 29),
    pad=st.sampled_from(["none", "edge", "zero"]),
)
@settings(deadline=None)
def test_stepwise_rows_equal_each_step_looked_up(
    num_steps_episode: int, num_steps: int, dilation: int, start: int, pad: str
) -> None:
    """Row i is step start + i * dilation, or the last step, masked, where that does not exist."""
    window = Window(num_steps=num_steps, dilation=dilation, pad=pad)  # type: ignore[arg-type]
    steps = [start + i * dilation for i in range(num_steps)]
    if start >= num_steps_episode or (pad == "none" and steps[-1] >= num_steps_episode):
        with pytest.raises(
            WindowError, match=rf"steps \[{start}, {start + window.span}\) .* has {num_steps_episode} steps"
        ):
            stepwise_rows(start, num_steps_episode, window)
        return
    rows_T, is_pad_T = stepwise_rows(start, num_steps_episode, window)
    assert window_steps(start, window).tolist() == steps
    assert rows_T.tolist() == [min(s, num_steps_episode - 1) for s in steps]
    assert is_pad_T.tolist() == [s >= num_steps_episode for s in steps]
    assert (rows_T.dtype, is_pad_T.dtype) == (np.int64, np.bool_)


def test_stepwise_rows_of_many_windows_equal_those_of_each() -> None:
    """(B,) starts and lengths give (B, T) rows, each as if asked for alone."""
    window = Window(num_steps=5, dilation=2, pad="edge")
    starts, lengths = np.array([0, 3, 6]), np.array([4, 20, 7])
    rows_BT, is_pad_BT = stepwise_rows(starts, lengths, window)
    for b in range(3):
        rows_T, is_pad_T = stepwise_rows(int(starts[b]), int(lengths[b]), window)
        assert rows_BT[b].tolist() == rows_T.tolist()
        assert is_pad_BT[b].tolist() == is_pad_T.tolist()
    with pytest.raises(WindowError, match=r"steps \[6, 15\) .* has 6 steps"):
        stepwise_rows(starts, np.array([4, 20, 6]), window)
    with pytest.raises(WindowError, match=r"steps \[-1, 8\)"):
        stepwise_rows(-1, 10, window)


# ---- clocked ----


def brute_force(times: list[int], t: int, align: str, tolerance: int | None) -> tuple[int, bool]:
    """Return (row, is a miss) of one step, by looking at every row."""
    if align == "nearest":
        row = min(range(len(times)), key=lambda i: (abs(times[i] - t), i))
    else:
        before = [i for i in range(len(times)) if times[i] <= t]
        if not before:
            return 0, True
        row = before[-1]
    return row, tolerance is not None and abs(times[row] - t) > tolerance


def test_clocked_rows_equal_brute_force_on_many_jittered_clocks() -> None:
    """24,000 windows on jittered, gappy, shifted and unix-time clocks: each step gets the row brute force finds."""
    draw = random.Random(20)
    num_ties = num_misses = num_pads = 0
    for case in range(24_000):
        period = draw.choice([4, 10, 1_000_000, 33_333_333])
        base = draw.choice([0, -(10**6), 1_700_000_000 * 10**9])
        times = sorted(
            {base + i * period + draw.randint(-period // 2, period // 2) for i in range(draw.randint(1, 12))}
        )
        if draw.random() < 0.3 and len(times) > 4:
            del times[2:4]  # a gap
        step = draw.choice([2, period, period // 2 + 1, 3 * period])
        first = base + draw.randint(-2 * period, 10 * period)
        steps = [first + i * step for i in range(draw.randint(1, 6))]
        num_pad = draw.choice([0, 0, draw.randint(0, len(steps) - 1)])
        is_pad = [i >= len(steps) - num_pad for i in range(len(steps))]
        align = draw.choice(["nearest", "previous"])
        tolerance = draw.choice([None, 0, period // 2, period, 10 * period])
        rows_T, mask_T = clocked_rows(
            np.array(steps),
            np.array(is_pad),
            np.array(times),
            align=align,
            tolerance_ns=tolerance,  # type: ignore[arg-type]
        )
        real = [brute_force(times, t, align, tolerance) for t, pad in zip(steps, is_pad, strict=True) if not pad]
        assert rows_T.tolist() == [r for r, _ in real] + [real[-1][0]] * num_pad, case
        assert mask_T.tolist() == [miss for _, miss in real] + [True] * num_pad, case
        num_misses += sum(miss for _, miss in real)
        num_pads += num_pad
        if align == "nearest":
            gaps = [sorted(abs(x - t) for x in times) for t in steps]
            num_ties += sum(len(gap) > 1 and gap[0] == gap[1] for gap in gaps)
    assert min(num_ties, num_misses, num_pads) > 500  # the cases that matter were there


@given(
    times=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6, unique=True).map(sorted),
    t=st.integers(-(2**63), 2**63 - 1),
    align=st.sampled_from(["nearest", "previous"]),
    tolerance=st.one_of(st.none(), st.integers(0, 2**64)),
)
@settings(max_examples=500, deadline=None)
def test_clocked_rows_are_exact_over_all_of_int64(times: list[int], t: int, align: str, tolerance: int | None) -> None:
    """Distances that pass int64 are compared exactly too."""
    rows_T, mask_T = clocked_rows(
        np.array([t]),
        NO_PAD,
        np.array(times, dtype=np.int64),
        align=align,
        tolerance_ns=tolerance,  # type: ignore[arg-type]
    )
    assert (rows_T.tolist(), mask_T.tolist()) == tuple([x] for x in brute_force(times, t, align, tolerance))


@pytest.mark.parametrize(
    ("align", "rows", "mask"),
    [
        ("nearest", [0, 0, 0, 1, 1, 2], [True, False, False, False, False, True]),
        ("previous", [0, 0, 0, 0, 1, 2], [True, False, False, True, False, True]),
    ],
)
def test_clocked_rows_of_hand_checked_times(align: str, rows: list[int], mask: list[bool]) -> None:
    """Rows at 0, 10, 20 with tolerance 5: before, on, a tie, past the middle, on, and far beyond the last."""
    got = clocked_rows(
        np.array([-6, 0, 5, 6, 10, 26]),
        np.zeros(6, dtype=bool),
        np.array([0, 10, 20]),
        align=align,
        tolerance_ns=5,  # type: ignore[arg-type]
    )
    assert [x.tolist() for x in got] == [rows, mask]


def test_clocked_rows_beyond_the_episode_keep_the_last_real_row_whatever_their_time() -> None:
    """A padded step takes the row of the last real step, masked, even where its own time would find another."""
    is_pad = np.array([[False, False, True, True], [False, True, True, True]])
    times = np.array([[0, 10, 20, 30], [10, 20, 20, 0]])
    rows, mask = clocked_rows(
        times, is_pad, np.array([0, 10, 20, 30]), align="nearest", tolerance_ns=0, on_miss="error"
    )
    assert rows.tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    assert mask.tolist() == is_pad.tolist()


@pytest.mark.parametrize(
    ("align", "time", "message"),
    [
        (
            "nearest",
            16,
            r"step 40 at 16 ns has no row near it: the nearest one, row 1, stands at 10 ns, 6 ns away; expected at most 5 ns",
        ),
        ("nearest", -9, r"step 40 at -9 ns has no row near it: the nearest one, row 0, stands at 0 ns, 9 ns away"),
        (
            "previous",
            -1,
            r"step 40 at -1 ns has no row at or before it: the nearest one, row 0, stands at 0 ns, 1 ns away",
        ),
        ("previous", 99, r"row 1, stands at 10 ns, 89 ns away"),
    ],
)
def test_clocked_rows_missed_under_error_name_step_time_row_and_gap(align: str, time: int, message: str) -> None:
    """on_miss="error" says which step, when, which row is nearest, and how far."""
    with pytest.raises(AlignError, match=message):
        clocked_rows(
            np.array([2, time]),
            np.zeros(2, dtype=bool),
            np.array([0, 10]),
            align=align,
            tolerance_ns=5,
            on_miss="error",
            steps_T=np.array([39, 40]),  # type: ignore[arg-type]
        )


def test_clocked_rows_missed_without_step_numbers_name_the_place_in_the_window() -> None:
    """Without step numbers and tolerance the message still says where and that no limit was set."""
    with pytest.raises(AlignError, match=r"window place 1 at -5 ns .* expected no limit"):
        clocked_rows(
            np.array([3, -5]),
            np.zeros(2, dtype=bool),
            np.array([0]),
            align="previous",
            tolerance_ns=None,
            on_miss="error",
        )


def test_clocked_rows_of_a_stream_without_rows_is_an_error() -> None:
    """There is no row to clamp to, so an empty stream is never aligned."""
    with pytest.raises(AlignError, match="got 0 timestamps, expected at least 1"):
        clocked_rows(np.array([0]), NO_PAD, np.array([], dtype=np.int64), align="nearest", tolerance_ns=None)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"align": "linear"}, "align='linear' is unknown"), ({"tolerance_ns": -1}, "tolerance_ns=-1 is invalid")],
)
def test_clocked_rows_with_an_unusable_argument_names_it(kwargs: dict[str, object], message: str) -> None:
    """Unknown rules and negative tolerances are refused."""
    with pytest.raises(ConfigError, match=message):
        clocked_rows(np.array([0]), NO_PAD, np.array([0]), **{"align": "nearest", "tolerance_ns": None, **kwargs})  # type: ignore[arg-type]


def test_clocked_rows_leave_their_arguments_alone() -> None:
    """Neither times nor masks are written."""
    times, is_pad, stream = np.array([0, 99, 99]), np.array([False, False, True]), np.array([0, 5])
    _, mask = clocked_rows(times, is_pad, stream, align="nearest", tolerance_ns=1)
    assert mask.tolist() == [False, True, True]
    assert (times.tolist(), is_pad.tolist(), stream.tolist()) == ([0, 99, 99], [False, False, True], [0, 5])


# ---- tolerance, zeroing, flags ----


@pytest.mark.parametrize(
    ("rate_hz", "tolerance_s", "expected"),
    [
        (100.0, None, 15_000_000),
        (30.0, None, 50_000_000),
        (None, None, None),
        (100.0, 0.1, 100_000_000),
        (100.0, 0.0, 0),
        (None, 0.0000000014, 1),
        (100.0, float("inf"), None),
    ],
)
def test_default_tolerance_is_given_or_one_and_a_half_periods(
    rate_hz: float | None, tolerance_s: float | None, expected: int | None
) -> None:
    """A given tolerance is rounded to the nanosecond; without one it is 1.5 periods, or no limit without a rate."""
    assert default_tolerance_ns(spec_of(rate_hz), Signal(tolerance_s=tolerance_s)) == expected


@pytest.mark.parametrize(
    ("pad", "is_pad", "stream_is_pad", "expected"),
    [
        ("edge", "..##", "..##", "...."),
        ("zero", "..##", "..##", "..##"),
        ("edge", "..##", "#.##", "#..."),
        ("edge", "..##", ".###", ".###"),
        ("zero", "..##", "#.##", "#.##"),
        ("none", "....", ".##.", ".##."),
    ],
)
def test_rows_to_zero_are_misses_and_zero_padding_and_what_repeats_a_miss(
    pad: str, is_pad: str, stream_is_pad: str, expected: str
) -> None:
    """Under edge padding the last real step is repeated: its row, or its zeros if it is a miss."""
    a, b = (np.array([c == "#" for c in x]) for x in (is_pad, stream_is_pad))
    got = rows_to_zero(a, b, pad)  # type: ignore[arg-type]
    assert "".join("#" if x else "." for x in got) == expected


@pytest.mark.parametrize("terminated", [1, 0, -1])
def test_step_flags_mark_first_last_and_terminal_and_nothing_beyond(terminated: int) -> None:
    """First and last step of an episode of 4; terminal only where the data say so; padded steps False."""
    window = Window(num_steps=6, pad="edge")
    rows_T, is_pad_T = stepwise_rows(0, 4, window)
    first, last, terminal = step_flags(rows_T, is_pad_T, 4, terminated)
    assert first.tolist() == [True] + [False] * 5
    assert last.tolist() == [False] * 3 + [True] + [False] * 2
    assert terminal.tolist() == (last.tolist() if terminated == 1 else [False] * 6)
    assert [x.tolist() for x in step_flags(window_steps(0, window), is_pad_T, 4, terminated)] == [
        x.tolist() for x in (first, last, terminal)
    ]


def test_step_flags_of_many_windows_follow_each_episode() -> None:
    """(B, T) rows with (B,) lengths and ends: one row each, an episode of one step being first and last at once."""
    window = Window(num_steps=2, pad="edge")
    lengths, ends = np.array([1, 5, 5]), np.array([1, 1, 0], dtype=np.int8)
    rows_BT, is_pad_BT = stepwise_rows(np.array([0, 3, 3]), lengths, window)
    first, last, terminal = step_flags(rows_BT, is_pad_BT, lengths, ends)
    assert first.tolist() == [[True, False], [False, False], [False, False]]
    assert last.tolist() == [[True, False], [False, True], [False, True]]
    assert terminal.tolist() == [[True, False], [False, True], [False, False]]


def test_alignment_at_the_nearest_rows_of_a_hundred_hertz_stream_never_drifts() -> None:
    """An hour of 30000/1001 Hz steps finds, of a 100 Hz stream, the row exact fractions find."""
    steps = np.arange(0, 30 * 3600, 997)
    times = UniformClock(rate_hz=Fraction(30000, 1001)).times_ns(steps)
    stream = UniformClock(rate_hz=Fraction(100)).times_ns(np.arange(100 * 3700))
    rows, mask = clocked_rows(times, np.zeros(len(steps), dtype=bool), stream, align="nearest", tolerance_ns=5_000_000)
    exact = [Fraction(int(s) * 1001, 30000) * 100 for s in steps]
    assert not mask.any()
    assert all(abs(row - x) <= Fraction(1, 2) for row, x in zip(rows.tolist(), exact, strict=True))
