"""`workers="auto"`: threads at first; worker processes where a measurement shows that the interpreter is the limit."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from trajload.errors import TrajloadError

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.pipeline.engine import Engine
    from trajload.pipeline.prefetch import Prefetcher
    from trajload.pipeline.workers import Batches, Workers

__all__ = ["AutoRun", "verdict"]

_MEASURE_S = 2.0
_MEASURE_BATCHES = 8
_WARM_UP_BATCHES = 4
"""The first batches compile kernels, open files and fill the pipeline."""


def verdict(elapsed_s: float, waited_s: float, cpu_s: float, num_cpus: int, num_processes: int) -> tuple[str, str]:
    """Return 'threads' or 'processes:N', and why.

    Threads that decode run side by side: libraries release the interpreter. Where Python is the limit, they take turns,
    and together use little more than one CPU although the consumer waits for them. That is what processes help with.

    Args:
        elapsed_s: Length of the measurement.
        waited_s: Of it, how long the consumer waited.
        cpu_s: CPU time of all threads of the pipeline.
        num_cpus: CPUs that the threads could use.
        num_processes: Processes there would be.
    """
    used, waited = cpu_s / elapsed_s, waited_s / elapsed_s
    seen = f"threads used {used:.1f} of {num_cpus} CPUs while the consumer waited {waited:.0%} of the time"
    if waited < 0.1:
        return "threads", f"auto: {seen}: they keep up"
    if used >= 0.7 * num_cpus:
        return "threads", f"auto: {seen}: they run side by side"
    if used < 0.7:
        return "threads", f"auto: {seen}: they wait for data"
    return f"processes:{num_processes}", f"auto: {seen}: they wait for each other"


class AutoRun:
    """Batches by threads, measured on the way; then by whatever was chosen. The batches are the same."""

    def __init__(self, engine: Engine, workers: Workers, train_step: int) -> None:
        self._engine, self._workers, self._next = engine, workers, train_step
        self._threads: Prefetcher | None = engine.start_threads(train_step)
        self._run: Batches = self._threads
        self._num_delivered = 0
        self._waited = 0.0
        self._since: tuple[float, float] | None = None
        self._is_starting = False

    def check_process(self) -> None:
        """Raise ConfigError in a forked child."""
        self._run.check_process()

    def next(self) -> Batch | None:
        """Return the next batch, None at the end of a finite run."""
        if self._is_starting:
            self._switch_when_ready()
        begin = time.perf_counter()
        batch = self._run.next()
        if batch is None:
            return None
        self._next = batch.train_step + 1
        if self._threads is not None and self._workers.is_open:
            self._measure(self._threads, time.perf_counter() - begin)
        return batch

    def close(self) -> None:
        """Stop. Idempotent."""
        self._run.close()

    def _measure(self, threads: Prefetcher, waited: float) -> None:
        self._num_delivered += 1
        if self._num_delivered <= _WARM_UP_BATCHES:
            return
        now = time.perf_counter()
        if self._since is None:
            self._since = now, _cpu_seconds(threads.thread_ids)
            return
        self._waited += waited
        begin, cpu_before = self._since
        if now - begin < _MEASURE_S or self._num_delivered < _WARM_UP_BATCHES + _MEASURE_BATCHES:
            return
        num_cpus = min(self._engine.num_workers, len(os.sched_getaffinity(0)))
        cpu_s = _cpu_seconds(threads.thread_ids) - cpu_before
        name, why = verdict(now - begin, self._waited, cpu_s, num_cpus, self._workers.num_processes)
        self._workers.decide(name, why)
        if name != "threads":
            try:
                self._workers.pool(self._engine).start()
                self._is_starting = True  # threads go on until the processes are there
            except TrajloadError as err:
                self._workers.decide("threads", f"{why}, but processes cannot be started: {err.message}")

    def _switch_when_ready(self) -> None:
        pool = self._workers.pool(self._engine)
        if not pool.is_ready:
            return
        self._is_starting = False
        self._run.close()
        self._threads = None
        self._run = pool.run(self._next)


def _cpu_seconds(thread_ids: list[int]) -> float:
    """Return the CPU time of threads of this process, as far as they still run."""
    ticks = 0
    for thread_id in thread_ids:
        try:
            with open(f"/proc/self/task/{thread_id}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
