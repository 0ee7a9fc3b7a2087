"""A wish to stop interrupts where nothing is measured or a piece may be broken off, and waits everywhere else."""

from __future__ import annotations

import pytest

from trajload.stop import Stop


def test_before_anything_is_measured_it_interrupts() -> None:
    """There is nothing to keep."""
    with pytest.raises(KeyboardInterrupt):
        Stop().ask()


def test_held_it_waits_once() -> None:
    """The measurement sees the wish; whoever insists ends it."""
    stop = Stop()
    stop.hold()
    assert not stop.wanted
    stop.ask()
    assert stop.wanted
    with pytest.raises(KeyboardInterrupt):
        stop.ask()


def test_a_piece_is_broken_off_and_what_was_measured_before_stands() -> None:
    """The block ends at once, what comes behind it is reached, and there a second wish interrupts."""
    stop, reached = Stop(), False
    stop.hold()
    with stop.breaking_off():
        stop.ask()
        reached = True
    assert stop.wanted and not reached
    with pytest.raises(KeyboardInterrupt):
        stop.ask()


def test_interrupts_of_others_are_not_swallowed() -> None:
    """A Ctrl-C that nobody turned into a wish ends the program as ever, and so does a second wish."""
    with pytest.raises(KeyboardInterrupt), Stop().breaking_off():
        raise KeyboardInterrupt
    stop = Stop()
    stop.hold()
    stop.ask()
    with pytest.raises(KeyboardInterrupt), stop.breaking_off():
        stop.ask()
