"""The memory that the machine gave the pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["memory_mb"]


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
