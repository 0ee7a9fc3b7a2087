"""Whether bytes are better fetched ahead by reader threads, or where they are used: a question of how long it takes."""

from __future__ import annotations

__all__ = ["ReadTimes"]

_MANY = 128
_QUICK_S, _SLOW_S = 300e-6, 500e-6


class ReadTimes:
    """How long it took lately to plan a unit and read its bytes. Any thread may note; a lost note does no harm.

    Handing a unit from thread to thread costs what reading it from the page cache does, twice over where cores are few.
    A decoder that waits for a disk or a network leaves its core idle, though. So readers fetch ahead until that is seen to
    take less than 0.3 ms on average, and again once it takes more than 0.5 ms. It is 0.05 to 0.2 ms with bytes in the page
    cache, the larger figure where threads that want Python's lock or a core wait for each other.
    """

    __slots__ = ("_mean_s", "are_quick")

    def __init__(self) -> None:
        self._mean_s = _SLOW_S
        """Of about the last 128 units; older ones count less and less."""
        self.are_quick = False

    def note(self, seconds: float) -> None:
        """Note one unit."""
        mean_s = self._mean_s = self._mean_s + (seconds - self._mean_s) / _MANY
        self.are_quick = mean_s < (_SLOW_S if self.are_quick else _QUICK_S)
