"""`workers="auto"`: threads at first; worker processes where a measurement shows that the interpreter is the limit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trajload.errors import TrajloadError
from trajload.machine import CpuTime, cpu_times, num_cpus
from trajload.pipeline.interpreter import GilProbe, GilUse

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.pipeline.engine import Engine
    from trajload.pipeline.prefetch import Prefetcher
    from trajload.pipeline.workers import Batches, Workers

__all__ = ["AutoRun", "Measured", "verdict"]

_MEASURE_S = 2.0
_MEASURE_BATCHES = 8
_WARM_UP_BATCHES = 4
"""The first batches compile kernels, open files and fill the pipeline."""

_KEEP_UP = 0.1
"""Share of the time that the consumer waits, below which nothing has to be faster."""
_BUSY = 0.7
"""Share of the CPUs from which on they are the limit; and CPUs below which nothing that computes is."""
_HELD = 0.5
"""Share of the times that the interpreter was asked for and held for long, from which on it is the limit."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen of threads at work."""

    elapsed_s: float
    waited_s: float
    """Of it, how long the consumer waited."""
    ran_s: float
    """CPU time of all threads of the pipeline."""
    queued_s: float
    """How long they were ready to run, and others had the CPUs."""
    num_cpus: float
    """That the threads could use."""
    gil: GilUse
    """What a thread met that asked for the interpreter while the consumer waited."""

    def to_json(self) -> dict[str, Any]:
        """Return it as `Loader.stats` tells it."""
        return {
            "measured_s": self.elapsed_s,
            "waited_share": self.waited_s / self.elapsed_s,
            "cpus_used": self.ran_s / self.elapsed_s,
            "cpus_queued": self.queued_s / self.elapsed_s,
            "cpus": self.num_cpus,
            "interpreter_held_share": self.gil.held_share,
        }


def verdict(seen: Measured, num_processes: int) -> tuple[str, str]:
    """Return 'threads' or 'processes:N', and why.

    Threads that decode run side by side: libraries release the interpreter. Where Python is the limit, they take turns,
    and together use little more than one CPU although the consumer waits for them. Where code keeps the interpreter and
    waits for something itself (an old extension that sleeps, asks a server, or a device), they use less than that, and
    only asking for the interpreter tells this from waiting for data. Processes, with an interpreter each, help with both.

    Args:
        seen: The measurement.
        num_processes: Processes there would be at most: of decoder threads and rows, not of CPUs.
    """
    used, waited, held = seen.ran_s / seen.elapsed_s, seen.waited_s / seen.elapsed_s, seen.gil.held_share
    ready = used + seen.queued_s / seen.elapsed_s
    said = f"auto: threads used {used:.1f} of {seen.num_cpus:g} CPUs while the consumer waited {waited:.0%} of the time"
    if ready - used >= 0.1:
        said += f", and were ready to use {ready - used:.1f} more"
    if held is not None:
        said += f"; the interpreter was held {held:.0%} of the times it was asked for"
    if waited < _KEEP_UP:
        return "threads", f"{said}: they keep up"
    is_held = held is not None and held >= _HELD
    by_cpus = min(num_processes, int(seen.num_cpus))
    if used >= _BUSY * seen.num_cpus or (ready >= _BUSY * seen.num_cpus and not is_held):
        return "threads", f"{said}: they run side by side" if by_cpus > 1 else f"{said}: they use what there is"
    computes = (ready if is_held else used) >= _BUSY
    if computes and by_cpus > 1:
        return f"processes:{by_cpus}", f"{said}: they wait for each other"
    if computes:
        return "threads", f"{said}: they use what there is"
    if is_held:
        # What holds it hardly computes: its waits are spent side by side by more processes than there are CPUs.
        return f"processes:{num_processes}", f"{said}: one that waits keeps the others waiting"
    return "threads", f"{said}: they wait for data"


class AutoRun:
    """Batches by threads, measured on the way; then by whatever was chosen. The batches are the same."""

    def __init__(self, engine: Engine, workers: Workers, train_step: int) -> None:
        self._engine, self._workers, self._next = engine, workers, train_step
        self._threads: Prefetcher | None = engine.start_threads(train_step)
        self._run: Batches = self._threads
        self._num_delivered = 0
        self._waited = 0.0
        self._since: tuple[float, CpuTime] | None = None
        self._is_starting = False
        self._probe: GilProbe | None = None
        self._wait = 0
        """Number of the wait that the consumer is in, 0 between waits."""

    def check_process(self) -> None:
        """Raise ConfigError in a forked child."""
        self._run.check_process()

    def next(self) -> Batch | None:
        """Return the next batch, None at the end of a finite run."""
        if self._is_starting:
            self._switch_when_ready()
        begin = time.perf_counter()
        self._wait = self._num_delivered + 1
        try:
            batch = self._run.next()
        finally:
            self._wait = 0
        if batch is None:
            return None
        self._next = batch.train_step + 1
        if self._threads is not None and self._workers.is_open:
            self._measure(self._threads, time.perf_counter() - begin)
        return batch

    def close(self) -> None:
        """Stop. Idempotent."""
        self._stop_probe()
        self._run.close()

    def _measure(self, threads: Prefetcher, waited: float) -> None:
        self._num_delivered += 1
        if self._num_delivered <= _WARM_UP_BATCHES:
            return
        now = time.perf_counter()
        if self._since is None:
            self._since = now, _cpu_of(threads)
            self._probe = GilProbe(lambda: self._wait).__enter__()
            return
        self._waited += waited
        begin, cpu_before = self._since
        if now - begin < _MEASURE_S or self._num_delivered < _WARM_UP_BATCHES + _MEASURE_BATCHES:
            return
        cpu, gil = _cpu_of(threads).since(cpu_before), self._stop_probe()
        cpus = min(self._engine.num_workers, num_cpus())
        seen = Measured(now - begin, self._waited, cpu.ran_s, cpu.queued_s, cpus, gil)
        name, why = verdict(seen, self._workers.num_processes)
        try:
            self._workers.decide(self._engine, name, why, seen.to_json())
            if name != "threads":
                self._workers.pool(self._engine).start()
                self._is_starting = True  # threads go on until the processes are there
        except TrajloadError as err:
            why = f"{why}, but processes cannot be started: {err.message}"
            self._workers.decide(self._engine, "threads", why, seen.to_json())

    def _stop_probe(self) -> GilUse:
        probe, self._probe = self._probe, None
        if probe is None:
            return GilUse()
        probe.__exit__()
        return probe.take()

    def _switch_when_ready(self) -> None:
        pool = self._workers.pool(self._engine)
        if not pool.is_ready:
            return
        self._is_starting = False
        self._run.close()
        self._threads = None
        self._run = pool.run(self._next)


def _cpu_of(threads: Prefetcher) -> CpuTime:
    """Return the CPU time of the pipeline's threads, and how long they were ready to run without a CPU."""
    times = cpu_times(("self", thread) for thread in threads.thread_ids).values()
    return CpuTime(sum(cpu.ran_s for cpu in times), sum(cpu.queued_s for cpu in times))
