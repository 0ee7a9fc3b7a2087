"""When saves are due."""

from __future__ import annotations

import pytest

from trajload.checkpoint.every import Clock, Every
from trajload.errors import ConfigError


class Time:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def dues(clock: Clock, steps: range, epochs: dict[int, int] | None = None) -> list[int]:
    due = []
    for step in steps:
        if clock.due(step, (epochs or {}).get(step)):
            due.append(step)
            clock.saved(step)
    return due


def test_steps_are_multiples_whatever_comes_between() -> None:
    """Also where steps are left out, and after a run goes on in the middle."""
    assert dues(Clock(Every(steps=10)), range(1, 35)) == [10, 20, 30]
    assert dues(Clock(Every(steps=10)), range(3, 40, 7)) == [10, 24, 31]
    clock = Clock(Every(steps=10))
    clock.start(20, None)
    assert dues(clock, range(21, 35)) == [30]
    clock.start(25, None)
    assert dues(clock, range(26, 35)) == [30]


def test_seconds_count_from_the_last_save() -> None:
    """A save for another reason starts them anew."""
    time = Time()
    clock = Clock(Every(steps=100, seconds=5.0), time)
    due = []
    for step in range(95, 112):
        time.now += 1.0
        if why := clock.due(step, None):
            due.append((step, why))
            clock.saved(step)
    assert due == [(99, "5 seconds"), (100, "100 steps"), (105, "5 seconds"), (110, "5 seconds")]


def test_epochs_are_due_when_one_begins() -> None:
    """Every second epoch here."""
    epochs = {step: step // 4 for step in range(1, 25)}
    assert dues(Clock(Every(epochs=2)), range(1, 25), epochs) == [8, 16, 24]


def test_nothing_is_due_without_a_rule() -> None:
    """Only save() saves then."""
    assert dues(Clock(Every()), range(1, 1000)) == []


@pytest.mark.parametrize(
    "bad", [{"steps": 0}, {"steps": 1.5}, {"epochs": True}, {"seconds": 0.0}, {"seconds": float("inf")}]
)
def test_bad_rule_is_refused(bad: dict[str, float]) -> None:
    """The argument is named."""
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Every(**bad)  # type: ignore[arg-type]
