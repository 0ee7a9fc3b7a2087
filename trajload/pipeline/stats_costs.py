"""What decoding cost, by source, stream and episode: a sample of every run, from which cost tables are made."""

# Shapes: E episodes, N notes

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajload.storage.locks import ForkLock
from trajload.types import Int64Array

__all__ = ["CostLog", "CostSums", "Laps"]

_FIELDS = 7
"""source, stream, episode, rows, frames, wall_ns, cpu_ns."""
_MAX_PENDING = 4096
_EVERY = 8
_GOLDEN = 0x9E3779B9


@dataclass(frozen=True, slots=True, eq=False)
class CostSums:
    """Sums over what was measured, int64 (E,) each; zero rows mean that the episode was not measured."""

    rows: Int64Array
    """Rows delivered: places of windows, or distinct rows of blocks."""
    frames: Int64Array
    """Frames that went through the decoder, with those between a keyframe and the first one wanted."""
    wall_ns: Int64Array
    cpu_ns: Int64Array
    """Of the thread: what a machine that is busy with other things does not lengthen. Says nothing of a GPU decoder."""


class Laps:
    """Clocks of one window: `note` gives the time since the last one to a stream."""

    __slots__ = ("_cpu_ns", "_log", "_wall_ns")

    def __init__(self, log: CostLog) -> None:
        self._log = log
        self._wall_ns, self._cpu_ns = time.perf_counter_ns(), time.thread_time_ns()

    def note(self, source: int, stream: int, episode: int, rows: int, frames: int) -> None:
        """Note what the rows of one stream took."""
        wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        self._log.add(source, stream, episode, rows, frames, wall_ns - self._wall_ns, cpu_ns - self._cpu_ns)
        self._wall_ns, self._cpu_ns = wall_ns, cpu_ns


class CostLog:
    """Costs noted by all decoder threads. Thread-safe.

    `every`: one window of so many is measured, since reading a thread's clock is a system call; blocks all are.
    1 measures everything.
    """

    def __init__(self, every: int = _EVERY) -> None:
        self.every = every
        self._tick = itertools.count()
        self._lock = ForkLock()
        self._pending: deque[tuple[int, ...]] = deque()
        self._sums: dict[tuple[int, int], Int64Array] = {}
        self._thread = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return (CostLog, (self.every,))

    def laps(self) -> Laps | None:
        """Return clocks for the next window, None where it is not to be measured."""
        # Spread by the golden ratio: every eighth window in turn would always be of the same source of a mixture.
        share = next(self._tick) * _GOLDEN & 0xFFFFFFFF
        return None if share * self.every >> 32 else Laps(self)

    def add(self, source: int, stream: int, episode: int, rows: int, frames: int, wall_ns: int, cpu_ns: int) -> None:
        """Note what decoding rows of one stream took; not the first of a thread, which opens a decoder and loads kernels.

        Args:
            source: Number of the source in the loader.
            stream: Number of the stream among the source's choices.
            episode: Number of the episode in the source.
            rows: Rows delivered.
            frames: Frames that went through the decoder.
            wall_ns: Time it took.
            cpu_ns: CPU time of the thread.
        """
        try:
            met: set[tuple[int, int]] = self._thread.met
        except AttributeError:
            met = self._thread.met = set()
        if (source, stream) not in met:
            met.add((source, stream))
            return
        self._pending.append((source, stream, episode, rows, frames, wall_ns, cpu_ns))
        if len(self._pending) > _MAX_PENDING:
            self._fold()

    def sums(self, source: int = 0) -> dict[int, CostSums]:
        """Return what was measured of a source, by number of the stream; arrays end with the last episode measured."""
        self._fold()
        with self._lock:
            return {
                stream: CostSums(*(column.copy() for column in sums_4E))
                for (of, stream), sums_4E in self._sums.items()
                if of == source
            }

    def reset(self) -> None:
        """Forget all."""
        with self._lock:
            self._pending.clear()
            self._sums = {}

    def take(self) -> Int64Array | None:
        """Return the notes since the last call, (N, 7), and forget them; for `merge` in another process."""
        notes = self._pop()
        return np.array(notes, dtype=np.int64) if notes else None

    def merge(self, notes_NF: Int64Array | None) -> None:
        """Add what `take` gave elsewhere."""
        if notes_NF is not None:
            with self._lock:
                self._add(notes_NF)

    def _pop(self) -> list[tuple[int, ...]]:
        notes = []
        try:
            while True:
                notes.append(self._pending.popleft())
        except IndexError:
            return notes

    def _fold(self) -> None:
        notes = self._pop()
        if notes:
            with self._lock:
                self._add(np.array(notes, dtype=np.int64))

    def _add(self, notes_NF: Int64Array) -> None:
        assert notes_NF.shape[1] == _FIELDS
        for source, stream in np.unique(notes_NF[:, :2], axis=0).tolist():
            mine_NF = notes_NF[(notes_NF[:, 0] == source) & (notes_NF[:, 1] == stream)]
            size = int(mine_NF[:, 2].max()) + 1
            sums_4E = self._sums.get((source, stream))
            if sums_4E is None or sums_4E.shape[1] < size:
                grown_4E = np.zeros((4, size), dtype=np.int64)
                if sums_4E is not None:
                    grown_4E[:, : sums_4E.shape[1]] = sums_4E
                sums_4E = self._sums[source, stream] = grown_4E
            for i in range(4):
                np.add.at(sums_4E[i], mine_NF[:, 2], mine_NF[:, 3 + i])
