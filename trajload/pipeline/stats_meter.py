"""What one thread has spent on each stage: sums and a histogram, and, while a trace is taken, every span."""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["STAGES", "Meter", "MeterDelta", "Tally", "quantile", "thread_figures"]

STAGES = ("plan", "read", "decode", "augment", "collate", "transfer", "wait")
"""`wait` is the time that the consumer was blocked in next(); the others are work, and overlap."""
_NUMBER = {stage: float(i) for i, stage in enumerate(STAGES)}
_LEAST_S = 1e-9
_ALL_OF = 1024
_GOLDEN = 0x9E3779B1
SPAN_FIELDS = 4
"""(number of the stage, begin, seconds, train_step or -1) of each span, begin on the clock of `time.perf_counter`."""


@dataclass(frozen=True, slots=True)
class MeterDelta:
    """What a meter of another process counted since it was last asked."""

    name: str
    native_id: int
    seconds: dict[str, float]
    notes: dict[str, int]
    buckets: dict[str, dict[int, int]]
    counts: dict[str, int]
    spans: bytes | None


class Tally:
    """Pieces of work of one stage, their seconds, and how those were spread: eight buckets for each doubling."""

    __slots__ = ("_kept", "buckets", "count", "next_kept", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0
        self.buckets: dict[int, int] = {}
        self.next_kept = 1
        """Piece of work that goes into the histogram next."""
        self._kept = 0

    def keep(self, seconds: float) -> None:
        """Let a piece of work stand in the histogram for all since the last one that does.

        Beyond the first thousand that is one of eight, since it is half of the cost of a note. Gaps vary by the golden
        ratio: every eighth would meet one of two sources only, where rows take turns.
        """
        fraction, exponent = math.frexp(seconds or _LEAST_S)
        number = 8 * exponent + int(16.0 * fraction)
        count, buckets = self.count, self.buckets
        buckets[number] = buckets.get(number, 0) + count - self._kept
        self._kept = count
        self.next_kept = count + (1 if count < _ALL_OF else 1 + (count * _GOLDEN >> 28 & 15))

    def merge(self, seconds: float, count: int, buckets: Mapping[int, int]) -> None:
        """Add what was counted elsewhere."""
        self.seconds += seconds
        self.count += count
        for number, count in buckets.items():
            self.buckets[number] = self.buckets.get(number, 0) + count


class Meter:
    """Counters that one thread writes and others read: no lock, since a torn reading is made good by the next one.

    Args:
        name: Of the thread, such as 'trajload-decode-0'.
        native_id: The system's number of it.
        worker: Number of the worker process it belongs to, None for this one.
    """

    __slots__ = ("counts", "name", "native_id", "spans", "step", "taken", "tallies", "thread", "worker")

    def __init__(self, name: str, native_id: int, worker: int | None = None) -> None:
        self.name, self.native_id, self.worker = name, native_id, worker
        self.thread: threading.Thread | None = None
        self.tallies = {stage: Tally() for stage in STAGES}
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.spans: array[float] | None = None
        self.step = -1.0
        """Train_step that the thread works on, while a trace is taken."""
        self.taken = _Sums({}, {}, {}, {})
        """Sums at the last `take`."""

    def add(self, stage: str, seconds: float, ago_s: float = 0.0) -> None:
        """Note one piece of work, which ends now, or ended some time ago."""
        tally = self.tallies[stage]
        tally.seconds += seconds
        tally.count = count = tally.count + 1
        if count >= tally.next_kept:
            tally.keep(seconds)
        spans = self.spans  # which whoever ends the trace may take away meanwhile
        if spans is not None:
            spans.extend((_NUMBER[stage], time.perf_counter() - seconds - ago_s, seconds, self.step))

    def count(self, amounts: Mapping[str, int]) -> None:
        """Add to named counters."""
        counts = self.counts
        for name, amount in amounts.items():
            counts[name] += amount

    @property
    def role(self) -> str:
        """'plan', 'read', 'decode', 'device' or 'consumer': what the thread is there for."""
        parts = self.name.split("-")
        is_ours = parts[0] == "trajload" and len(parts) > 1 and parts[1] in ("plan", "read", "decode", "device")
        return parts[1] if is_ours else "consumer"

    def take(self) -> MeterDelta | None:
        """Return what was counted since the last call, None for nothing."""
        now, old = self._sums(), self.taken
        self.taken = now
        spans, kept = None, self.spans
        if kept is not None:
            num = len(kept)
            spans = kept[:num].tobytes()
            del kept[:num]  # what the thread adds meanwhile comes after
        counts = {name: count - old.counts.get(name, 0) for name, count in now.counts.items()}
        delta = MeterDelta(
            self.name,
            self.native_id,
            {stage: spent - old.seconds.get(stage, 0.0) for stage, spent in now.seconds.items()},
            {stage: count - old.notes.get(stage, 0) for stage, count in now.notes.items()},
            {stage: _minus(found, old.buckets.get(stage, {})) for stage, found in now.buckets.items()},
            {name: count for name, count in counts.items() if count},
            spans,
        )
        return delta if delta.counts or any(delta.notes.values()) else None

    def _sums(self) -> _Sums:
        tallies = {stage: tally for stage, tally in self.tallies.items() if tally.count}
        return _Sums(
            {stage: tally.seconds for stage, tally in tallies.items()},
            {stage: tally.count for stage, tally in tallies.items()},
            {stage: dict(tally.buckets) for stage, tally in tallies.items()},
            dict(self.counts),
        )

    def merge(self, delta: MeterDelta) -> None:
        """Add what `take` gave in another process."""
        for stage, spent in delta.seconds.items():
            self.tallies[stage].merge(spent, delta.notes[stage], delta.buckets[stage])
        self.count(delta.counts)
        spans = self.spans
        if delta.spans and spans is not None:
            spans.frombytes(delta.spans)

    def absorb(self, other: Meter) -> None:
        """Add all of another meter of this process, whose thread has ended."""
        for stage, tally in other.tallies.items():
            self.tallies[stage].merge(tally.seconds, tally.count, tally.buckets)
        self.count(other.counts)
        self.taken.add(other.taken)


@dataclass(frozen=True, slots=True)
class _Sums:
    """What a meter had counted at some time."""

    seconds: dict[str, float]
    notes: dict[str, int]
    buckets: dict[str, dict[int, int]]
    counts: dict[str, int]

    def add(self, other: _Sums) -> None:
        for stage, spent in other.seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + spent
        for mine, more in ((self.notes, other.notes), (self.counts, other.counts)):
            for name, count in more.items():
                mine[name] = mine.get(name, 0) + count
        for stage, found in other.buckets.items():
            buckets = self.buckets.setdefault(stage, {})
            for number, count in found.items():
                buckets[number] = buckets.get(number, 0) + count


def _minus(now: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
    return {number: count - before.get(number, 0) for number, count in now.items() if count != before.get(number, 0)}


def quantile(buckets: Mapping[int, int] | Iterable[Mapping[int, int]], share: float) -> float | None:
    """Return the value that `share` of the observations do not exceed, within 13 %; None without observations.

    Args:
        buckets: Of one tally, or of several together.
        share: 0.5 for the median.
    """
    together: dict[int, int] = {}
    for part in [buckets] if isinstance(buckets, Mapping) else buckets:
        for number, count in dict(part).items():
            together[number] = together.get(number, 0) + count
    total = sum(together.values())
    if not total:
        return None
    left = share * total
    for number in sorted(together):
        count = together[number]
        if left <= count:
            return _lower(number) + _width(number) * (left / count)
        left -= count
    return _lower(number) + _width(number)


def _lower(number: int) -> float:
    exponent, place = divmod(number - 8, 8)
    return math.ldexp((8 + place) / 16, exponent)


def _width(number: int) -> float:
    return math.ldexp(1 / 16, (number - 8) // 8)


def thread_figures(meters: Iterable[Meter]) -> list[dict[str, Any]]:
    """Return what `Loader.stats` tells of threads."""
    return [
        {
            "worker": meter.worker,
            "name": meter.name.removeprefix("trajload-"),
            "role": meter.role,
            "native_id": meter.native_id,
            "seconds": {stage: tally.seconds for stage, tally in meter.tallies.items() if tally.count},
        }
        for meter in meters
    ]
