"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

__all__ = ["free_memory"]


def free_memory(root: str = "/") -> int | None:
    """Return bytes of memory that are free for use, of the machine or of this process's control group; None if unknown.

    Args:
        root: Where /proc and /sys stand; for tests.
    """
    found = [_available(Path(root)), _left_in_group(Path(root))]
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _available(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_in_group(root: Path) -> int | None:
    folder = root / "sys/fs/cgroup"
    try:
        limit, used = (folder / "memory.max").read_text().strip(), (folder / "memory.current").read_text()
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))
