"""Where the time went: busy seconds, their spread, and counts of each stage, by thread. Always on.

Each thread writes a meter of its own, without a lock: a note costs half a microsecond, and nobody waits for anybody.
"""

from __future__ import annotations

import threading
import time
from array import array
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trajload.pipeline.stats_costs import CostLog
from trajload.pipeline.stats_meter import STAGES, Meter, MeterDelta, quantile, thread_figures
from trajload.storage.locks import ForkLock

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.pipeline.workers import Batches

__all__ = ["STAGES", "StageStats"]

_MAX_METERS = 64
"""Of this process, before those of threads that have ended are put together."""
_COUNTS = ("batches", "windows", "frames", "bytes_read", "substituted")
_MAX_READY = 64


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
        self._stats.add(self._stage, time.perf_counter() - self._begin)


class StageStats:
    """Counters of one loader. Thread-safe. Sent to another process, it begins from zero there."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self.costs = CostLog()
        """Decode cost by source, stream and episode; `reset` leaves it alone."""
        self.is_tracing = False
        self.reset()

    def __getstate__(self) -> dict[str, Any]:
        return {"costs": self.costs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.costs = state["costs"]

    def reset(self) -> None:
        """Start counting from zero."""
        with self._lock:
            self._local = threading.local()
            self._meters: list[Meter] = []
            self._ended: Meter | None = None
            self._remote: dict[tuple[int, str], Meter] = {}
            self._levels: dict[str, int] = {}
            self._ready: list[int] = [0] * (_MAX_READY + 1)
            self._since = time.perf_counter()
            self._first_batch_s: float | None = None

    # ---- what stages call ----

    @property
    def meter(self) -> Meter:
        """The meter of the calling thread."""
        try:
            found: Meter = self._local.meter
        except AttributeError:
            return self._new_meter()
        return found

    def timed(self, stage: str) -> _Timed:
        """Add the time of the `with` block to `stage`."""
        return _Timed(self, stage)

    def add(self, stage: str, seconds: float) -> None:
        """Note one piece of work of `stage`, which ends now."""
        try:
            self._local.meter.add(stage, seconds)
        except AttributeError:
            self._new_meter().add(stage, seconds)

    def count(self, **amounts: int) -> None:
        """Add to the named counters (windows, frames, bytes_read, ...)."""
        self.meter.count(amounts)

    def gathered(self, seconds: float, num_windows: int, num_bytes: int) -> None:
        """Note rows that were copied at once; windows count where nothing of them is left to do."""
        meter = getattr(self._local, "meter", None) or self._new_meter()
        meter.add("decode", seconds)
        counts = meter.counts
        counts["windows"] += num_windows
        counts["bytes_read"] += num_bytes

    def window_read(self, plan_s: float, read_s: float, num_bytes: int) -> None:
        """Note a window that was planned, and read unless there was nothing to read; both end now."""
        meter = getattr(self._local, "meter", None) or self._new_meter()
        meter.add("plan", plan_s, read_s)
        if num_bytes:
            meter.add("read", read_s)
            meter.counts["bytes_read"] += num_bytes

    def window_decoded(
        self, seconds: float, frames: int, num_decoded: int, num_windows: int = 1, ago_s: float = 0.0
    ) -> None:
        """Note a decoded window: pictures delivered, and pictures that went through a decoder.

        Args:
            num_windows: 0 where another note counts the window.
            ago_s: How long ago it was done.
        """
        meter = getattr(self._local, "meter", None) or self._new_meter()
        meter.add("decode", seconds, ago_s)
        counts = meter.counts
        counts["windows"] += num_windows
        counts["frames"] += frames
        counts["row_frames_decoded"] += num_decoded

    def level(self, name: str, amount: int) -> None:
        """Set `<name>_used_bytes`, and raise `<name>_peak_bytes` to it where that is lower. For one thread at a time."""
        levels = self._levels
        levels[f"{name}_used_bytes"] = amount
        if amount > levels.get(f"{name}_peak_bytes", 0):
            levels[f"{name}_peak_bytes"] = amount

    def asked(self, num_ready: int) -> None:
        """Note how many finished batches stood ready when one was asked for. For one thread at a time."""
        self._ready[min(num_ready, _MAX_READY)] += 1

    def next_of(self, batches: Batches) -> Batch | None:
        """Return the next batch for the consumer, and note how long it was blocked."""
        begin = time.perf_counter()
        batch = batches.next()
        if batch is not None:
            meter = getattr(self._local, "meter", None) or self._new_meter()
            meter.add("wait", time.perf_counter() - begin)
            meter.counts["batches"] += 1
            if self._first_batch_s is None:
                self._first_batch_s = time.perf_counter() - self._since
        return batch

    def delivered(self) -> None:
        """Note that a batch reached the consumer."""
        self.meter.counts["batches"] += 1
        if self._first_batch_s is None:
            self._first_batch_s = time.perf_counter() - self._since

    def at_step(self, train_step: int) -> None:
        """Note which train_step the calling thread works on; called while a trace is taken."""
        self.meter.step = float(train_step)

    def _new_meter(self) -> Meter:
        thread = threading.current_thread()
        meter = self._local.meter = Meter(thread.name, threading.get_native_id())
        meter.thread = thread
        if self.is_tracing:
            meter.spans = array("d")
        with self._lock:
            if len(self._meters) >= _MAX_METERS:
                self._put_ended_together()
            self._meters.append(meter)
        return meter

    def _put_ended_together(self) -> None:
        """Bound what is kept of runs that are over."""
        alive = []
        for meter in self._meters:
            if meter.thread is None or meter.thread.is_alive() or meter.spans is not None:
                alive.append(meter)
                continue
            if self._ended is None:
                self._ended = Meter("ended", 0)
            self._ended.absorb(meter)
        self._meters = alive

    # ---- between processes ----

    def take(self) -> tuple[list[MeterDelta], Any]:
        """Return what was counted since the last call; for `merge_taken` in another process."""
        return [delta for meter in self._own() if (delta := meter.take()) is not None], self.costs.take()

    def merge_taken(self, taken: tuple[list[MeterDelta], Any], worker: int) -> None:
        """Add what `take` gave in worker process `worker`."""
        deltas, costs = taken
        self.costs.merge(costs)
        for delta in deltas:
            key = (worker, delta.name)
            meter = self._remote.get(key)
            if meter is None:
                meter = Meter(delta.name, delta.native_id, worker)
                meter.spans = array("d") if self.is_tracing else None
                with self._lock:
                    self._remote[key] = meter
            meter.native_id = delta.native_id
            meter.merge(delta)

    # ---- traces ----

    def start_trace(self) -> None:
        """Keep every span from now on. Threads of worker processes join in when a run begins."""
        with self._lock:
            self.is_tracing = True
            for meter in self._all():
                meter.spans = array("d")

    def stop_trace(self) -> list[tuple[Meter, array[float]]]:
        """Stop keeping spans; return those of each thread, four numbers a span (see `stats_meter`)."""
        with self._lock:
            self.is_tracing = False
            found = []
            for meter in self._all():
                spans, meter.spans = meter.spans, None
                if spans:
                    found.append((meter, spans[:]))  # a copy: its thread may just be adding to it
        return found

    # ---- what users see ----

    def _own(self) -> list[Meter]:
        return [*self._meters, *([] if self._ended is None else [self._ended])]

    def _all(self) -> list[Meter]:
        return [*self._own(), *self._remote.values()]

    def counted(self, *names: str) -> dict[str, int]:
        """Return the named counters and levels; levels are of this process alone."""
        meters, levels = self._all(), self._levels
        return {
            name: levels[name] if name in levels else sum(meter.counts.get(name, 0) for meter in meters)
            for name in names
        }

    def stages(self) -> dict[str, dict[str, Any]]:
        """Return for each stage: pieces of work, seconds, and how long a piece takes (median, 99th percentile)."""
        meters, out = self._all(), {}
        for stage in STAGES:
            tallies = [meter.tallies[stage] for meter in meters]
            buckets = [dict(tally.buckets) for tally in tallies]
            out[stage] = {
                "count": sum(tally.count for tally in tallies),
                "seconds": sum(tally.seconds for tally in tallies),
                "median_s": quantile(buckets, 0.5),
                "p99_s": quantile(buckets, 0.99),
            }
        return out

    def queue(self) -> dict[str, Any]:
        """Return how many finished batches stood ready when one was asked for: mean, and share of the times there was none."""
        ready = list(self._ready)
        total = sum(ready)
        mean = sum(i * count for i, count in enumerate(ready)) / total if total else None
        return {"asked": total, "mean_ready": mean, "empty_share": ready[0] / total if total else None}

    def snapshot(self) -> dict[str, Any]:
        """Return a plain dict: `seconds` and `stages`, `threads`, `queue`, counters, `elapsed_s`, `first_batch_s`."""
        stages = self.stages()
        decoded = self.counted("frames_decoded", "row_frames_decoded")  # of blocks, and of windows by themselves
        return {
            "elapsed_s": time.perf_counter() - self._since,
            "first_batch_s": self._first_batch_s,
            "seconds": {stage: value["seconds"] for stage, value in stages.items()},
            "stages": stages,
            "threads": thread_figures(self._all()),
            "queue": self.queue(),
            **self.counted(*_COUNTS),
            "frames_decoded": sum(decoded.values()),
        }
