"""What the machine gave the pipeline: CPU time, waiting for a CPU, waiting for the interpreter, memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CpuTime", "GilProbe", "GilUse", "cpu_times", "describe_machine", "memory_mb", "num_cpus"]

_PROBE_S = 0.002
_SLACK_S = 0.0001
"""A sleep is always a little longer than asked for."""
_HELD_S = 0.0003
"""Waits beyond it mean that another thread held the interpreter for long: short pieces of Python do not count."""
_MIN_PROBES = 5


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Of one thread."""

    ran_s: float
    queued_s: float
    """Ready to run, but other threads had the CPUs; 0 where the system does not tell."""

    def since(self, before: CpuTime) -> CpuTime:
        """Return the time between two readings."""
        return CpuTime(self.ran_s - before.ran_s, self.queued_s - before.queued_s)


def cpu_times(threads: Iterable[tuple[int, int]]) -> dict[tuple[int, int], CpuTime]:
    """Return what each (process, thread) has used so far, as far as the system tells: Linux only."""
    found = {}
    for pid, thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                ran_ns, queued_ns, _ = file.read().split()
        except (OSError, ValueError):
            continue
        found[pid, thread] = CpuTime(int(ran_ns) / 1e9, int(queued_ns) / 1e9)
    return found


def num_cpus() -> float:
    """Return how many CPUs this process may use; containers and SLURM restrict them."""
    number: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            number = min(number, int(quota) / int(period))
    except (OSError, ValueError):
        pass
    return number


@dataclass(frozen=True, slots=True)
class GilUse:
    """What a thread met that asked for the interpreter at random times."""

    held_share: float
    """Share of the times that it was held, and not let go of at once."""
    mean_wait_s: float
    num_probes: int


class GilProbe:
    """A thread that asks for the interpreter every 2 ms and notes how long it waits. Use as a context manager.

    Waiting for a CPU is told apart from waiting for the interpreter where the system tells (Linux).
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._waits: list[float] = []
        self._thread = threading.Thread(target=self._run, name="trajload-probe", daemon=True)

    def __enter__(self) -> GilProbe:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            fd = -1
        try:
            while not self._stop.is_set():
                queued_s = _queued_s(fd)
                begin = time.perf_counter()
                time.sleep(_PROBE_S)
                late_s = time.perf_counter() - begin - _PROBE_S
                self._waits.append(max(0.0, late_s - (_queued_s(fd) - queued_s) - _SLACK_S))
        finally:
            if fd >= 0:
                os.close(fd)

    def use(self) -> GilUse | None:
        """Return what was met so far; None for too few questions."""
        waits = list(self._waits)
        if len(waits) < _MIN_PROBES:
            return None
        held = sum(wait > _HELD_S for wait in waits)
        return GilUse(held / len(waits), sum(waits) / len(waits), len(waits))


def _queued_s(fd: int) -> float:
    return int(os.pread(fd, 100, 0).split()[1]) / 1e9 if fd >= 0 else 0.0


def memory_mb(pids: Iterable[int | None] = ()) -> tuple[float, float]:
    """Return resident memory now and at its peak, of this process and of others; zeros where the system does not tell.

    Memory that processes share is counted once for each of them; peaks are added up, as if they had come at once.
    """
    now = peak = 0.0
    for pid in ("self", *(pid for pid in pids if pid is not None)):
        try:
            text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        now += int(fields.get("VmRSS", "0 kB").split()[0]) / 1024
        peak += int(fields.get("VmHWM", "0 kB").split()[0]) / 1024
    return now, peak


def describe_machine() -> dict[str, Any]:
    """Return what figures depend on: system, CPUs, versions."""
    import platform
    from importlib.metadata import version

    names = ("trajload", "torch", "numpy", "av", "numba")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": num_cpus(),
        "versions": {name: version(name) for name in names},
    }
