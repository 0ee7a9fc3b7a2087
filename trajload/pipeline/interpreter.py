"""What stops the threads of a process that run Python: whoever holds the interpreter, and the garbage collector.

Both are watched only while a loader is measured, in its own process and in worker processes. The collector is left as it is
(docs/decisions/0150-the-collector-is-the-programs-own.md).
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

__all__ = ["CollectorWatch", "GilProbe", "GilUse", "InterpreterUse", "InterpreterWatch", "Pause"]

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


# ---- the garbage collector ----


@dataclass(frozen=True, slots=True)
class Pause:
    """One collection of the oldest generation: no other thread of its process ran Python meanwhile."""

    begin: float
    """On the clock of `time.perf_counter`, which processes of one machine share."""
    seconds: float


class CollectorWatch:
    """Notes collections of the oldest generation. Use as a context manager; it changes no setting of the collector."""

    def __init__(self) -> None:
        self.pauses: list[Pause] = []
        self._begin: float | None = None

    def __enter__(self) -> CollectorWatch:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._begin = time.perf_counter()
        elif self._begin is not None:  # None for one that began before it was watched
            self.pauses.append(Pause(self._begin, time.perf_counter() - self._begin))
            self._begin = None

    def take(self) -> list[Pause]:
        """Return those since the last call."""
        num = len(self.pauses)
        taken = self.pauses[:num]
        del self.pauses[:num]  # a collection that ends meanwhile comes after
        return taken


# ---- both, as worker processes tell of them ----


@dataclass(frozen=True, slots=True)
class InterpreterUse:
    """What one process met. Uses of one process add up."""

    gil: GilUse = GilUse()
    pauses: list[Pause] = field(default_factory=list)

    def __add__(self, other: InterpreterUse) -> InterpreterUse:
        return InterpreterUse(self.gil + other.gil, self.pauses + other.pauses)


class InterpreterWatch:
    """A probe and a watch of this process. Use as a context manager."""

    def __init__(self) -> None:
        self._probe, self._collector, self._both = GilProbe(), CollectorWatch(), ExitStack()

    def __enter__(self) -> InterpreterWatch:
        self._both.enter_context(self._probe)
        self._both.enter_context(self._collector)
        return self

    def __exit__(self, *exc: object) -> None:
        self._both.close()

    def take(self) -> InterpreterUse:
        """Return what was met since the last call."""
        return InterpreterUse(self._probe.take(), self._collector.take())
