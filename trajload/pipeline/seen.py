"""Which train_steps a loader has delivered: half-open ranges, a few numbers however long the run."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["MAX_RANGES", "Seen", "union"]

MAX_RANGES = 64
"""More than that are joined where they lie closest: what is told is then more than what was delivered, never less."""

Mark = tuple[list[tuple[int, int]], int, int]
"""State of a `Seen`; its list is replaced, never changed."""


class Seen:
    """Train_steps that were delivered, each counted once. For the thread that takes batches."""

    def __init__(self) -> None:
        self._before: list[tuple[int, int]] = []
        self._begin = self._stop = 0

    def add(self, train_step: int) -> int:
        """Count `train_step` as delivered, and return the one after it."""
        if train_step != self._stop:
            self._before = self.ranges
            self._begin = train_step
        self._stop = train_step + 1
        return self._stop

    @property
    def mark(self) -> Mark:
        """What has been counted so far, for `back_to`. Costs nothing."""
        return self._before, self._begin, self._stop

    def back_to(self, mark: Mark) -> None:
        """Take back what was counted since `mark`: it was made, and never reached whoever trains."""
        self._before, self._begin, self._stop = mark

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """[begin, stop) of all, rising, apart from each other."""
        return union([*self._before, (self._begin, self._stop)])

    def clear(self) -> None:
        """Begin anew: a training state was loaded that has not seen what this loader has delivered."""
        self._before, self._begin, self._stop = [], 0, 0


def union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the train_steps of all ranges as at most `MAX_RANGES`.

    Example:
        >>> union([(5, 9), (0, 3), (3, 4), (7, 12)])
        [(0, 4), (5, 12)]
    """
    joined: list[tuple[int, int]] = []
    for begin, stop in sorted(ranges):
        if begin >= stop:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((begin, stop))
    while len(joined) > MAX_RANGES:
        closest = min(range(1, len(joined)), key=lambda i: joined[i][0] - joined[i - 1][1])
        joined[closest - 1 : closest + 1] = [(joined[closest - 1][0], joined[closest][1])]
    return joined
