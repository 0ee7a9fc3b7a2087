"""How busy each kind of thread was: what a verdict is made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trajload.bench.observe import Observation, ThreadUse

__all__ = ["Load", "consumer_work", "cpu_use", "loads_of", "slow_worker"]

_SLOW_BY = 1.7
_IS_FULL = 0.7


@dataclass(frozen=True, slots=True)
class Load:
    """All threads of one role: those of one process, or of the busiest one."""

    role: str
    worker: int | None
    num_threads: int
    use: float
    """Share of the time that they were at work, on average; 1: never idle."""
    stages: dict[str, float]
    """The same by stage."""
    blocked_share: float | None
    """Of the time at work, the share that was spent neither running nor waiting for a CPU: on the disk, asleep, or waiting
    for the interpreter. None where the system does not tell."""

    runnable: float = 0.0
    """Share of the time that they ran or waited for a CPU, on average; 0 where the system does not tell."""

    @property
    def not_idle(self) -> float:
        """Share of the time that they had something to do, whether or not they got a CPU for it."""
        return max(self.use, min(self.runnable, 1.0))

    @property
    def stage(self) -> str:
        """The stage that takes most of it."""
        return max(self.stages, key=lambda stage: self.stages[stage])


def loads_of(seen: Observation) -> list[Load]:
    """Return the loads of an observation, the busiest first; of several processes, each role of the busiest one."""
    best: dict[str, Load] = {}
    for load in _all_loads(seen):
        known = best.get(load.role)
        if known is None or load.use > known.use:
            best[load.role] = load
    return sorted(best.values(), key=lambda load: -load.use)


def _all_loads(seen: Observation) -> list[Load]:
    kinds: dict[tuple[int | None, str], list[ThreadUse]] = {}
    for thread in seen.threads:
        if thread.busy_s > 0:
            kinds.setdefault((thread.worker, thread.role), []).append(thread)
    return [_load(role, worker, threads, seen.elapsed_s) for (worker, role), threads in kinds.items()]


def _load(role: str, worker: int | None, threads: Sequence[ThreadUse], elapsed_s: float) -> Load:
    stages: dict[str, float] = {}
    for thread in threads:
        for stage, spent in thread.seconds.items():
            if stage != "wait":
                stages[stage] = stages.get(stage, 0.0) + spent
    busy = sum(stages.values())
    blocked, runnable, share = None, 0.0, 1 / (elapsed_s * len(threads))
    if busy and all(thread.cpu is not None for thread in threads):
        used = sum(thread.cpu.ran_s + thread.cpu.queued_s for thread in threads if thread.cpu is not None)
        blocked, runnable = max(0.0, 1 - used / busy), used * share
    by_stage = {stage: spent * share for stage, spent in stages.items()}
    return Load(role, worker, len(threads), busy * share, by_stage, blocked, runnable)


def slow_worker(seen: Observation) -> tuple[int, float] | None:
    """Return (number, how many times as long as the others it works) of a process that the others wait for."""
    use: dict[int, float] = {}
    for load in _all_loads(seen):
        if load.worker is not None:
            use[load.worker] = max(use.get(load.worker, 0.0), load.use)
    if len(use) < 2:
        return None
    slowest = max(use, key=lambda worker: use[worker])
    others = sorted(spent for worker, spent in use.items() if worker != slowest)
    typical = others[len(others) // 2]
    if use[slowest] >= _IS_FULL and use[slowest] >= _SLOW_BY * typical:
        return slowest, use[slowest] / max(typical, 1e-3)
    return None


def consumer_work(seen: Observation) -> dict[str, float]:
    """Return the work done in the thread that asks for batches, as shares of the time, by stage."""
    out: dict[str, float] = {}
    for thread in seen.threads:
        if thread.role == "consumer" and thread.worker is None:
            for stage, spent in thread.seconds.items():
                if stage != "wait":
                    out[stage] = out.get(stage, 0.0) + spent / seen.elapsed_s
    return out


def cpu_use(threads: Iterable[ThreadUse], elapsed_s: float) -> tuple[float, float] | None:
    """Return (CPUs that the threads kept busy, CPUs they waited for on average); None where the system does not tell."""
    told = [thread.cpu for thread in threads if thread.cpu is not None]
    if not told:
        return None
    return sum(cpu.ran_s for cpu in told) / elapsed_s, sum(cpu.queued_s for cpu in told) / elapsed_s
