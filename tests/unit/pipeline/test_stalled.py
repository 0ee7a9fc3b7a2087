"""When a wait for threads counts as a stall: only time that the waiting thread itself spent, and only without progress."""

from __future__ import annotations

import threading

import pytest

from trajload.pipeline import stalled
from trajload.pipeline.stalled import StallWatch, stacks_of


def waited(watch: StallWatch, monkeypatch: pytest.MonkeyPatch, *took_s: float) -> None:
    """Let waits end after so many seconds by the clock."""
    now = [100.0]
    monkeypatch.setattr(stalled.time, "monotonic", lambda: now[0])
    for seconds in took_s:

        class Changed:
            def wait(self, timeout: float | None = None, seconds: float = seconds) -> None:
                now[0] += seconds

        watch.wait(Changed())  # type: ignore[arg-type]


def test_waits_add_up_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four seconds without a sign of progress; a sign begins anew."""
    first, second = object(), object()
    watch = StallWatch(4.0, first)
    waited(watch, monkeypatch, 1.0, 1.0, 1.0)
    assert not watch.is_stalled(first)
    assert not watch.is_stalled(second)
    waited(watch, monkeypatch, 1.0, 1.0, 1.0)
    assert not watch.is_stalled(second)
    waited(watch, monkeypatch, 1.0)
    assert watch.is_stalled(second)


def test_process_that_was_stopped_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour in one wait of a second is time in which the threads did not run either."""
    sign = object()
    watch = StallWatch(4.0, sign)
    waited(watch, monkeypatch, 3600.0, 3600.0, 3600.0)
    assert not watch.is_stalled(sign)


def test_without_a_limit_one_wait_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """None waits for ever, in one go."""
    asked = []

    class Changed:
        def wait(self, *timeout: float) -> None:
            asked.append(timeout)

    watch = StallWatch(None, None)
    watch.wait(Changed())  # type: ignore[arg-type]
    assert asked == [()] and not watch.is_stalled(None)


def test_stacks_name_thread_and_function() -> None:
    """Of threads that run; one that was not started has none."""
    is_there, may_go = threading.Event(), threading.Event()

    def stands_here() -> None:
        is_there.set()
        may_go.wait()

    thread = threading.Thread(target=stands_here, name="the-one")
    assert stacks_of([thread]) == ""
    thread.start()
    is_there.wait()
    stacks = stacks_of([thread])
    may_go.set()
    thread.join()
    assert stacks.startswith("thread the-one:\n") and "in stands_here" in stacks
