"""Clocks that do not rise: refused with their values, or repaired by a named policy."""

# Shapes: N rows

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.align.clocks import repair_clock
from trajload.errors import AlignError

TIMES = st.lists(st.integers(-20, 20), min_size=1, max_size=15)


@given(TIMES)
@settings(max_examples=300, deadline=None)
def test_repaired_clocks_rise_and_keep_what_they_promise(times: list[int]) -> None:
    """`sort` keeps every distinct time, first recorded first; `drop` the rows later than all before; both map rows."""
    ordered = repair_clock(np.array(times), "sort")
    assert ordered.times_M.tolist() == sorted(set(times))
    found = np.arange(len(ordered.times_M))
    assert ordered.rows(found).tolist() == [times.index(t) for t in sorted(set(times))]
    dropped = repair_clock(np.array(times), "drop")
    expected = [i for i, t in enumerate(times) if all(t > before for before in times[:i])]
    assert dropped.rows(np.arange(len(dropped.times_M))).tolist() == expected
    assert dropped.times_M.tolist() == [times[i] for i in expected]


@pytest.mark.parametrize("policy", ["error", "sort", "drop"])
def test_clock_that_rises_is_left_alone(policy: str) -> None:
    """A sound clock is the same under every policy, without a copy."""
    times = np.array([1, 5, 6])
    clock = repair_clock(times, policy)  # type: ignore[arg-type]
    assert clock.times_M is times
    assert clock.row_M is None


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0, 10, 7, 20], r"row 1 is at 10 ns, row 2 at 7 ns \(1 such pairs among 4 rows\)"),
        ([0, 10, 10, 10], r"row 1 is at 10 ns, row 2 at 10 ns \(2 such pairs among 4 rows\)"),
    ],
)
def test_clock_that_does_not_rise_is_refused_with_rows_and_times(times: list[int], message: str) -> None:
    """Without a policy, a step back and a repeated time are errors."""
    with pytest.raises(AlignError, match=message):
        repair_clock(np.array(times), "error")
