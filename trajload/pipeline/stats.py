"""Where the time went: busy seconds and counts of each stage, summed over threads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from trajload.storage.locks import ForkLock

__all__ = ["STAGES", "StageStats"]

STAGES = ("plan", "read", "decode", "augment", "collate", "wait")
"""`wait` is the time that the consumer was blocked in next(); the others are work, and overlap."""


class _Timed:
    """One block under the clock. A class, since a generator costs five times as much to enter and leave."""

    __slots__ = ("_begin", "_stage", "_stats")

    def __init__(self, stats: StageStats, stage: str) -> None:
        self._stats, self._stage = stats, stage

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stats.add_seconds(self._stage, time.perf_counter() - self._begin)


class StageStats:
    """Counters of one loader. Thread-safe; one short lock a row, far below the cost of the row."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self.reset()

    def reset(self) -> None:
        """Start counting from zero."""
        with self._lock:
            self._seconds = dict.fromkeys(STAGES, 0.0)
            self._counts: dict[str, int] = {}
            self._levels: dict[str, int] = {}
            self._since = time.perf_counter()
            self._first_batch_s: float | None = None

    def timed(self, stage: str) -> _Timed:
        """Add the time of the `with` block to `stage`."""
        return _Timed(self, stage)

    def add_seconds(self, stage: str, seconds: float) -> None:
        """Add to the busy time of `stage`."""
        with self._lock:
            self._seconds[stage] += seconds

    def add(self, stage: str, seconds: float, **amounts: int) -> None:
        """Add to a stage and to named counters at once: for work on whole batches, which counts its time itself."""
        with self._lock:
            self._seconds[stage] += seconds
            for name, amount in amounts.items():
                self._counts[name] = self._counts.get(name, 0) + amount

    def count(self, **amounts: int) -> None:
        """Add to the named counters (windows, frames, bytes_read, ...)."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] = self._counts.get(name, 0) + amount

    def take(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return seconds and counts since the last call, and start from zero; for `merge` in another process."""
        with self._lock:
            seconds, counts = self._seconds, self._counts
            self._seconds, self._counts = dict.fromkeys(STAGES, 0.0), {}
        return seconds, counts

    def merge(self, seconds: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Add what `take` gave elsewhere, or what one piece of work cost."""
        with self._lock:
            for stage, spent in seconds.items():
                self._seconds[stage] = self._seconds.get(stage, 0.0) + spent
            for name, amount in counts.items():
                self._counts[name] = self._counts.get(name, 0) + amount

    def level(self, name: str, amount: int) -> None:
        """Set `<name>_used_bytes`, and raise `<name>_peak_bytes` to it where that is lower."""
        with self._lock:
            self._levels[f"{name}_used_bytes"] = amount
            self._levels[f"{name}_peak_bytes"] = max(self._levels.get(f"{name}_peak_bytes", 0), amount)

    def counted(self, *names: str) -> dict[str, int]:
        """Return the named counters and levels; levels are of this process alone."""
        with self._lock:
            return {name: self._counts.get(name, self._levels.get(name, 0)) for name in names}

    def delivered(self) -> None:
        """Note that a batch reached the consumer."""
        with self._lock:
            self._counts["batches"] = self._counts.get("batches", 0) + 1
            if self._first_batch_s is None:
                self._first_batch_s = time.perf_counter() - self._since

    def snapshot(self) -> dict[str, Any]:
        """Return a plain dict: `seconds` per stage, counters, `elapsed_s`, `first_batch_s`."""
        with self._lock:
            return {
                "elapsed_s": time.perf_counter() - self._since,
                "first_batch_s": self._first_batch_s,
                "seconds": dict(self._seconds),
                **{
                    name: self._counts.get(name, 0)
                    for name in ("batches", "windows", "frames", "bytes_read", "substituted")
                },
            }
