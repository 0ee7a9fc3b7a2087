"""What this process may take of the machine, and what its threads took: as the kernel and control groups (v1, v2) have it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

__all__ = ["CpuTime", "cpu_times", "free_memory", "num_cpus", "total_memory"]

_Pid = TypeVar("_Pid", int, str)

_NO_LIMIT = 1 << 60
"""Groups of version 1 write a number near 2**63 for no limit."""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Of one thread."""

    ran_s: float
    queued_s: float
    """Ready to run, but other threads had the CPUs; 0 where the system does not tell."""

    def since(self, before: CpuTime) -> CpuTime:
        """Return the time between two readings."""
        return CpuTime(self.ran_s - before.ran_s, self.queued_s - before.queued_s)


def cpu_times(threads: Iterable[tuple[_Pid, int]]) -> dict[tuple[_Pid, int], CpuTime]:
    """Return what each (process, thread) has used so far, for those that still run: Linux only.

    A process is given by its number, or as "self".
    """
    found = {}
    for pid, thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                ran_ns, queued_ns, _ = file.read().split()
        except (OSError, ValueError):
            continue
        found[pid, thread] = CpuTime(int(ran_ns) / 1e9, int(queued_ns) / 1e9)
    return found


def free_memory(root: str = "/") -> int | None:
    """Return bytes of memory that are free for use, of the machine and of this process's control groups; None if unknown.

    Cached files do not count as used, neither by the machine nor by a group: the kernel drops them where memory is short.

    Args:
        root: Where /proc and /sys stand; for tests.
    """
    found = [_meminfo(Path(root), "MemAvailable")]
    for folder in _groups(Path(root), "memory"):
        limit = _memory_limit(folder)
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            found.append(max(0, limit - max(0, used - _cached(folder))))
    return _least(found)


def total_memory(root: str = "/") -> int | None:
    """Return bytes of memory that this process may take at most, whoever uses it now; None if unknown."""
    physical = _meminfo(Path(root), "MemTotal")
    if physical is None:
        with suppress(AttributeError, ValueError, OSError):  # not Linux
            physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _least([physical, *(_memory_limit(folder) for folder in _groups(Path(root), "memory"))])


def num_cpus(root: str = "/") -> float:
    """Return how many CPUs this process may use: containers and SLURM restrict them, by sets of CPUs and by shares of time."""
    number: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    for folder in _groups(Path(root), "cpu"):
        with suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            if quota != "max":
                number = min(number, int(quota) / int(period))
        quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota_us and period_us and quota_us > 0:  # -1: no limit
            number = min(number, quota_us / period_us)
    return number


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that this process is in, from its own to the outermost: each may limit it.

    In a container the path in /proc may be that of the host, and the container's own group then stands at the mount's top.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = ["0::/"]
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2, which stands in a folder of its own beside version 1
            top = mount / "unified" if (mount / "unified").is_dir() else mount
        elif controller in controllers.split(","):
            top = mount / controller if (mount / controller).is_dir() else mount / controllers
        else:
            continue
        folder = top / path.strip("/")
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def _memory_limit(folder: Path) -> int | None:
    """Return the bytes that a group may use; None for no limit."""
    limits = [_number(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    return _least([limit for limit in limits if limit is not None and limit < _NO_LIMIT])


def _cached(folder: Path) -> int:
    """Return the bytes of files that a group has cached."""
    try:
        words = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        prefix = "total_" if "total_active_file" in words else ""  # version 1: of the groups inside, too
        return int(words.get(f"{prefix}active_file", 0)) + int(words.get(f"{prefix}inactive_file", 0))
    except (OSError, ValueError):
        return 0


def _meminfo(root: Path, name: str) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _number(*files: Path) -> int | None:
    """Return the number in the first of the files that holds one; None where there is none ('max')."""
    for file in files:
        with suppress(OSError, ValueError):
            return int(file.read_text(encoding="ascii"))
    return None


def _least(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None
