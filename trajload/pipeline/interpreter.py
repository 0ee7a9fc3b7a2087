"""How often the interpreter is held when a thread asks for it: a probe, which runs only while a loader is measured."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["GilProbe", "GilUse"]

_PROBE_S = 0.002
_SLACK_S = 0.0001
"""A sleep is always a little longer than asked for."""
_HELD_S = 0.0003
"""Waits beyond it mean that another thread held the interpreter for long: short pieces of Python do not count."""
_MIN_PROBES = 5


@dataclass(frozen=True, slots=True)
class GilUse:
    """What a thread met that asked for the interpreter at random times. Uses of one process add up."""

    num_probes: int = 0
    num_held: int = 0
    """Times that it was held, and not let go of at once."""
    wait_s: float = 0.0

    @property
    def held_share(self) -> float | None:
        """Share of the times that it was held; None for too few questions."""
        return self.num_held / self.num_probes if self.num_probes >= _MIN_PROBES else None

    def __add__(self, other: GilUse) -> GilUse:
        return GilUse(self.num_probes + other.num_probes, self.num_held + other.num_held, self.wait_s + other.wait_s)

    def __sub__(self, other: GilUse) -> GilUse:
        return GilUse(self.num_probes - other.num_probes, self.num_held - other.num_held, self.wait_s - other.wait_s)


class GilProbe:
    """A thread that asks for the interpreter every 2 ms and notes how long it waits. Use as a context manager.

    Waiting for a CPU is told apart from waiting for the interpreter where the system tells (Linux).
    """

    def __init__(self, during: Callable[[], int] | None = None) -> None:
        """Prepare.

        Args:
            during: Number of the stretch of time that goes on, 0 for none: only what begins and ends in one stretch is noted.
                None: all is.
        """
        self._during = during or (lambda: 1)
        self._stop = threading.Event()
        self._waits: deque[float] = deque()
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
                stretch = self._during()
                queued_s = _queued_s(fd)
                begin = time.perf_counter()
                time.sleep(_PROBE_S)
                late_s = time.perf_counter() - begin - _PROBE_S
                if stretch and stretch == self._during():
                    self._waits.append(max(0.0, late_s - (_queued_s(fd) - queued_s) - _SLACK_S))
        finally:
            if fd >= 0:
                os.close(fd)

    def take(self) -> GilUse:
        """Return what was met since the last call."""
        waits = [self._waits.popleft() for _ in range(len(self._waits))]
        return GilUse(len(waits), sum(wait > _HELD_S for wait in waits), sum(waits))


def _queued_s(fd: int) -> float:
    return int(os.pread(fd, 100, 0).split()[1]) / 1e9 if fd >= 0 else 0.0
