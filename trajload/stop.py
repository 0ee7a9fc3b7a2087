"""A wish to end a long measurement early, with what it has by then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Stop"]


class Stop:
    """Asked for from outside, for instance by a signal handler; the measurement says when it may be interrupted.

    At first nothing is measured, and `ask` raises KeyboardInterrupt. From `hold` on it only sets `wanted`, which the measurement looks
    at between two pieces of work. Asked a second time it always raises: whoever insists does not want to wait. One that is never asked
    changes nothing.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._is_held = False
        self._num_asked = 0

    def ask(self) -> None:
        """Ask for the end.

        Raises:
            KeyboardInterrupt: There is nothing to keep, a piece of work may be broken off, or it was asked for before.
        """
        self.wanted = True
        self._num_asked += 1
        if not self._is_held or self._num_asked > 1:
            raise KeyboardInterrupt

    @property
    def is_awaited(self) -> bool:
        """Whether `ask` left it to the measurement to end."""
        return self.wanted and self._is_held

    def hold(self) -> None:
        """Say that there is something to keep, and that `wanted` is looked at."""
        self._is_held = True

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """Let `ask` break off the block, of which nothing is then kept; go on behind it."""
        try:
            self._is_held = False
            yield
        except KeyboardInterrupt:
            if self._num_asked != 1:
                raise
        finally:
            self._is_held = True
