"""Whether other programs had the CPUs while something was measured: what was measured then is no finding."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Others"]

_MOST_SHARE = 0.1
"""Of all CPUs: where others took more, a measurement is disturbed."""


@dataclass
class Others:
    """What other programs have taken of all CPUs since this was made."""

    _before: tuple[float, float, float] = field(default_factory=lambda: _clocks())

    @property
    def share(self) -> float:
        """Of all CPUs, from 0 to 1; 0 where the system does not tell."""
        now, busy_s, own_s = (a - b for a, b in zip(_clocks(), self._before, strict=True))
        return max(0.0, busy_s - own_s) / (max(now, 1e-3) * (os.cpu_count() or 1))

    @property
    def disturbed(self) -> bool:
        """Whether they took so much that what was measured meanwhile may be their doing."""
        return self.share > _MOST_SHARE


def _clocks() -> tuple[float, float, float]:
    """Return seconds: of the clock, of all busy CPUs, and of this process with its children, those that have ended included."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        # user, nice, system, idle, iowait, irq, softirq, steal
        fields = [int(text) for text in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return time.monotonic(), 0.0, 0.0
    used = os.times()
    own_s = used.user + used.system + used.children_user + used.children_system
    return time.monotonic(), (sum(fields) - fields[3] - fields[4]) / ticks, own_s + _of_living_children() / ticks


def _of_living_children() -> int:
    """Return the clock ticks of children that run, and of their own that have ended."""
    ticks = 0
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            pids = task.read_text(encoding="ascii").split()
        except OSError:
            continue
        for pid in pids:
            try:
                told = (
                    Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                )
            except OSError:
                continue
            ticks += sum(map(int, told[11:15]))
    return ticks
