"""What Python's garbage collector took of a measurement, in the process where it took most, and whether it is the longest wait.

Source: docs/decisions/0150-the-collector-is-the-programs-own.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trajload.bench.observe import Observation
from trajload.pipeline.interpreter import Pause

__all__ = ["CollectorUse", "collector_cure", "collector_use", "collector_words"]

_CAUSE_SHARE = 0.5
"""A wait of which pauses cover so much is theirs."""
_FELT_S = 0.005
"""Shorter pauses are nobody's longest wait that counts."""
_MUCH = 0.1
"""Share of the time from which on it is worth a word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectorUse:
    """What the collector took of a measurement."""

    worker: int | None
    """Number of the worker process that this is told of; None for the loader's own."""
    share: float
    """Of the time, how much it stopped that process."""
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
        """What to do, in a sentence or two; None where it neither takes much nor is the longest wait."""
        if not self.is_longest_wait and self.share < _MUCH:
            return None
        whose = "" if self.worker is None else f" of worker process {self.worker}"
        took = f"{self.share:.0%} of the time"
        if self.is_longest_wait:
            took = f"{self.in_longest_wait_ms:.0f} ms of the longest wait"
        return f"Python's garbage collector stopped all threads{whose} for {took}: {collector_cure(self.worker)}."


def collector_cure(worker: int | None) -> str:
    """Return what to do about pauses of the loader's own process (None), or of a worker process."""
    if worker is None:
        return "call gc.collect() and gc.freeze() once all is set up, or gc.disable() and collect where a pause does no harm"
    return "keep fewer objects in transforms, or call gc.freeze() in their module once what they keep is built"


def collector_words(told: Mapping[str, Any]) -> str:
    """Return what `CollectorUse.to_json` gave in words: how many collections, and how long the process stood still."""
    number = told["collections"]
    what = f"{number} full collection{'' if number == 1 else 's'}"
    if told["worker"] is not None:
        what += f" in worker process {told['worker']}"
    if not number:
        return what
    words = f"{what}, {told['total_ms']:.0f} ms in all ({told['share']:.0%} of the time), the longest {told['longest_ms']:.0f} ms"
    return words + (f", {told['in_longest_wait_ms']:.0f} ms of the longest wait" if told["is_longest_wait"] else "")


def collector_use(seen: Observation) -> CollectorUse:
    """Return what pauses did: of the process in which they are the longest wait, else of the one that they stopped longest."""
    uses = [_use(seen, worker, seen.pauses_of(worker)) for worker in (None, *seen.worker_pauses)]
    return max(uses, key=lambda use: (use.is_longest_wait, use.total_ms))


def _use(seen: Observation, worker: int | None, pauses: Sequence[Pause]) -> CollectorUse:
    inside, longest_s = 0.0, 0.0
    if seen.waits_s:
        longest_s = max(seen.waits_s)
        begin = seen.began + seen.asked_s[seen.waits_s.index(longest_s)]
        ends = [(max(begin, p.begin), min(begin + longest_s, p.begin + p.seconds)) for p in pauses]
        inside = sum(max(0.0, end - start) for start, end in ends)
    return CollectorUse(
        worker=worker,
        share=seen.collected_share(worker),
        collections=len(pauses),
        total_ms=sum(pause.seconds for pause in pauses) * 1e3,
        longest_ms=max((pause.seconds for pause in pauses), default=0.0) * 1e3,
        in_longest_wait_ms=inside * 1e3,
        is_longest_wait=inside >= max(_FELT_S, _CAUSE_SHARE * longest_s),
    )
