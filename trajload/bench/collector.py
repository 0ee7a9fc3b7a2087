"""How long Python's garbage collector stopped the process while a loader was measured, and whether that is its longest wait.

The collector is watched and left as it is. Source: docs/decisions/0150-the-collector-is-the-programs-own.md
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["CollectorUse", "CollectorWatch", "Pause", "collector_use", "collector_words"]

_CAUSE_SHARE = 0.5
"""A wait of which pauses cover so much is theirs."""
_FELT_S = 0.005
"""Shorter pauses are nobody's longest wait that counts."""


@dataclass(frozen=True, slots=True)
class Pause:
    """One collection of the oldest generation: no other thread ran Python meanwhile."""

    begin: float
    """On the clock of `time.perf_counter`."""
    seconds: float


class CollectorWatch:
    """Notes collections of the oldest generation. Use as a context manager; it changes no setting of the collector."""

    def __init__(self) -> None:
        self.pauses: list[Pause] = []
        self._begin: float | None = None

    def __enter__(self) -> CollectorWatch:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._begin = time.perf_counter()
        elif self._begin is not None:  # None for one that began before it was watched
            self.pauses.append(Pause(self._begin, time.perf_counter() - self._begin))
            self._begin = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectorUse:
    """What the collector took of a measurement."""

    collections: int
    """Of the oldest generation: those that look at all objects of the process."""
    total_ms: float
    longest_ms: float
    in_longest_wait_ms: float
    """How much of the longest wait they were."""
    is_longest_wait: bool
    """Whether they are its cause: at least half of it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def advice(self) -> str | None:
        """What to do, in a sentence; None where the longest wait has other causes."""
        if not self.is_longest_wait:
            return None
        return (
            f"Python's garbage collector stopped all threads for {self.in_longest_wait_ms:.0f} ms of the longest wait: call "
            "gc.collect() and gc.freeze() once all is set up, or gc.disable() and collect where a pause does no harm."
        )


def collector_words(told: Mapping[str, Any]) -> str:
    """Return what `CollectorUse.to_json` gave in words: how many collections, and how long the process stood still."""
    number = told["collections"]
    what = f"{number} full collection{'' if number == 1 else 's'}"
    if not number:
        return what
    words = f"{what}, {told['total_ms']:.0f} ms in all, the longest {told['longest_ms']:.0f} ms"
    return words + (f", {told['in_longest_wait_ms']:.0f} ms of the longest wait" if told["is_longest_wait"] else "")


def collector_use(pauses: Sequence[Pause], asked: Sequence[float], waits_s: Sequence[float]) -> CollectorUse:
    """Return what pauses did to a consumer that asked at these times, on the pauses' clock, and waited so long."""
    inside, longest_s = 0.0, 0.0
    if waits_s:
        longest_s = max(waits_s)
        begin = asked[waits_s.index(longest_s)]
        ends = [(max(begin, p.begin), min(begin + longest_s, p.begin + p.seconds)) for p in pauses]
        inside = sum(max(0.0, end - start) for start, end in ends)
    return CollectorUse(
        collections=len(pauses),
        total_ms=sum(pause.seconds for pause in pauses) * 1e3,
        longest_ms=max((pause.seconds for pause in pauses), default=0.0) * 1e3,
        in_longest_wait_ms=inside * 1e3,
        is_longest_wait=inside >= max(_FELT_S, _CAUSE_SHARE * longest_s),
    )
