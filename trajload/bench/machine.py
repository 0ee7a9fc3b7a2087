"""What the machine gave the pipeline: CPU time, waiting for a CPU, memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajload.costs.machine import machine_facts

__all__ = ["CpuTime", "cpu_times", "describe_machine", "memory_mb"]


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
    return machine_facts()
