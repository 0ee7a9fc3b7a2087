"""One run of a loader, observed: what the consumer waited for, what each thread did, what the machine gave."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trajload.bench.machine import memory_mb
from trajload.errors import ConfigError
from trajload.loader import Loader
from trajload.machine import CpuTime, cpu_times, num_cpus
from trajload.pipeline.interpreter import GilUse, InterpreterUse, InterpreterWatch, Pause
from trajload.pipeline.stats_meter import Meter
from trajload.stop import Stop

__all__ = ["Live", "Observation", "ThreadUse", "observe"]

NUM_SLICES = 3
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Live:
    """How a measurement stands, for whoever shows it."""

    done_s: float
    total_s: float
    windows_per_s: float
    wait_share: float
    num_ready: float | None
    """Finished batches that stood ready, on average."""


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """What one thread did while it was observed."""

    worker: int | None
    """Number of its worker process; None for the loader's own process."""
    name: str
    role: str
    """'plan', 'read', 'decode', 'device' or 'consumer'."""
    seconds: dict[str, float]
    """Busy, by stage."""
    cpu: CpuTime | None
    """None where the system does not tell."""

    @property
    def busy_s(self) -> float:
        """At work; waiting for batches is none."""
        return sum(spent for stage, spent in self.seconds.items() if stage != "wait")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """A run: nothing in it is judged yet."""

    elapsed_s: float
    first_batch_s: float
    step_s: float
    """The consumer spent so long on each batch, asleep."""
    asked_s: list[float]
    """When each batch was asked for, since the measurement began."""
    waits_s: list[float]
    """How long the consumer was blocked, batch by batch."""
    rates: list[float]
    """Windows per second of each slice of the time."""
    num_windows: int
    episodes_per_batch: list[int]
    stats: dict[str, Any]
    threads: list[ThreadUse]
    gil: GilUse
    """Of the loader's own process."""
    worker_gil: dict[int, GilUse] = field(default_factory=dict)
    """Of worker processes, by number."""
    pauses: list[Pause] = field(default_factory=list)
    """Collections of Python's oldest generation of objects, in the loader's own process."""
    worker_pauses: dict[int, list[Pause]] = field(default_factory=dict)
    """The same of worker processes, by number."""
    num_cpus: float
    rss_mb: float
    peak_rss_mb: float
    spans: list[tuple[Meter, array[float]]] = field(default_factory=list)
    began: float = 0.0
    """On the clock of the spans."""
    is_stopped: bool = False
    """The run was ended before its time."""

    @property
    def wait_share(self) -> float:
        """Share of the time that the consumer was blocked."""
        return sum(self.waits_s) / self.elapsed_s

    def pauses_of(self, worker: int | None) -> list[Pause]:
        """Return the pauses of a worker process, or with None of the loader's own."""
        return self.pauses if worker is None else self.worker_pauses.get(worker, [])

    def collected_share(self, worker: int | None) -> float:
        """Return the share of the time that the collector stopped a process."""
        return sum(pause.seconds for pause in self.pauses_of(worker)) / self.elapsed_s


def observe(
    loader: Loader,
    *,
    seconds: float = 10.0,
    warmup_batches: int = 3,
    step_s: float = 0.0,
    progress: Callable[[Live], None] | None = None,
    trace: bool = False,
    num_batches: int | None = None,
    stop: Stop | None = None,
) -> Observation:
    """Iterate `loader` for some seconds and return what was seen.

    Args:
        loader: A loader that has not been iterated yet, without `num_epochs` or long enough. Left open.
        seconds: Time measured, cut into three slices.
        warmup_batches: Batches not measured, at least 1, so that compiling and cold files do not count.
        step_s: Time that the consumer spends on each batch (asleep), in place of a training step.
        progress: Told how it stands, about ten times a second.
        trace: Whether to keep every span.
        num_batches: Stop after so many batches, whatever the time.
        stop: Ends the measurement after the batch in which it is asked for.

    Raises:
        ConfigError: A bad argument, or the run is over before the time is.
    """
    if not seconds > 0 or warmup_batches < 1 or step_s < 0:
        raise ConfigError(
            f"seconds={seconds!r}, warmup_batches={warmup_batches!r}, step_s={step_s!r}: expected > 0, >= 1 and >= 0."
        )
    ending, stats = Stop() if stop is None else stop, loader.stats_recorder
    if trace:
        stats.start_trace()
    workers = loader._engine.workers
    workers.is_probing = True
    batches: Any = iter(loader)  # a generator: closing it stops the threads
    try:
        begin = time.perf_counter()
        _take(batches)
        first_batch_s = time.perf_counter() - begin
        for _ in range(warmup_batches - 1):
            _take(batches)
        if trace:
            stats.stop_trace()  # warming up is not part of it
            stats.start_trace()
        loader.reset_stats()
        with InterpreterWatch() as watch:
            cpu_before = _all_threads(loader.stats()["worker_pids"])
            uses_before = workers.interpreter_uses()
            asked: list[float] = []
            waits: list[float] = []
            rates: list[float] = []
            episodes: list[int] = []
            num_windows = 0
            ending.hold()
            start = told = slice_start = time.perf_counter()
            for i in range(NUM_SLICES):
                until, windows = start + seconds * (i + 1) / NUM_SLICES, 0
                while windows == 0 or (time.perf_counter() < until and not ending.wanted):
                    if num_batches is not None and len(waits) >= num_batches and windows:
                        break
                    asked.append(time.perf_counter() - start)
                    batch = _take(batches)
                    waits.append(time.perf_counter() - start - asked[-1])
                    windows += len(batch["window_id"])
                    episodes.append(len(set(zip(batch["source"], batch["episode_index"].tolist(), strict=True))))
                    del batch
                    if step_s:
                        time.sleep(step_s)
                    now = time.perf_counter()
                    if progress is not None and now - told > _TICK_S:
                        told = now
                        progress(_live(loader, now - start, seconds, num_windows + windows, sum(waits)))
                # Slices touch, so that the rate of the whole lies between theirs.
                slice_start, before = time.perf_counter(), slice_start
                sliced_s = slice_start - before
                if not (
                    ending.wanted and rates and sliced_s < seconds / NUM_SLICES / 2
                ):  # too short to count beside others
                    rates.append(windows / sliced_s)
                num_windows += windows
                if ending.wanted:
                    break
            elapsed = slice_start - start
            if progress is not None:
                progress(_live(loader, elapsed, seconds, num_windows, sum(waits)))
            figures = loader.stats()
            cpu_after = _all_threads(figures["worker_pids"])
            use, worker_uses = watch.take(), workers.interpreter_uses()
    finally:
        batches.close()
        workers.is_probing = False
        spans = stats.stop_trace() if trace else []
    rss, peak = memory_mb(figures["worker_pids"])
    return Observation(
        elapsed_s=elapsed,
        first_batch_s=first_batch_s,
        step_s=step_s,
        asked_s=asked,
        waits_s=waits,
        rates=rates,
        num_windows=num_windows,
        episodes_per_batch=episodes,
        stats=figures,
        threads=_threads(figures, cpu_before, cpu_after),
        gil=use.gil,
        worker_gil={k: told.gil - uses_before.get(k, InterpreterUse()).gil for k, told in worker_uses.items()},
        pauses=use.pauses,
        worker_pauses={k: [p for p in told.pauses if p.begin >= start] for k, told in worker_uses.items()},
        num_cpus=num_cpus(),
        rss_mb=rss,
        peak_rss_mb=peak,
        spans=spans,
        began=start,
        is_stopped=ending.wanted and elapsed < seconds,
    )


def _live(loader: Loader, elapsed_s: float, seconds: float, num_windows: int, waited_s: float) -> Live:
    ready = loader.stats_recorder.queue()["mean_ready"]
    return Live(min(elapsed_s, seconds), seconds, num_windows / elapsed_s, waited_s / elapsed_s, ready)


def _take(batches: Any) -> Any:
    batch = next(batches, None)
    if batch is None:
        raise ConfigError("the run ended before the measurement: use num_epochs=None, or measure for less time.")
    return batch


def _all_threads(pids: Any = ()) -> dict[tuple[int, int], CpuTime]:
    """Return the CPU times of all threads of this process and of worker processes."""
    keys = []
    for pid in (os.getpid(), *(pid for pid in pids if pid is not None)):
        try:
            keys += [(pid, int(name)) for name in os.listdir(f"/proc/{pid}/task")]
        except OSError:
            continue
    return cpu_times(keys)


def _threads(
    figures: dict[str, Any], before: dict[tuple[int, int], CpuTime], after: dict[tuple[int, int], CpuTime]
) -> list[ThreadUse]:
    out = []
    for told in figures["threads"]:
        worker = told["worker"]
        pids = figures["worker_pids"]
        pid = os.getpid() if worker is None else pids[worker] if worker < len(pids) else None
        key = (pid or -1, told["native_id"])
        cpu = None
        if key in after:
            cpu = after[key].since(before.get(key, CpuTime(0.0, 0.0)))
        out.append(ThreadUse(worker, told["name"], told["role"], told["seconds"], cpu))
    return out
