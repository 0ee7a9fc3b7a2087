"""The timestamps of clocked streams as alignment wants them: strictly rising, repaired where a policy says so."""

# Shapes: N rows of a stream as recorded, M rows after repair

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from trajload.errors import AlignError
from trajload.sources.base import Dataset
from trajload.spec import BadClock, StreamRequest
from trajload.storage.locks import ForkLock
from trajload.types import Int64Array

__all__ = ["Clock", "StreamClocks", "repair_clock", "steps_before_ns"]

_MAX_REPAIRED = 64
_UNKNOWN, _RISES, _BAD = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """Strictly rising timestamps, and the row each belongs to."""

    times_M: Int64Array
    row_M: Int64Array | None = None
    """None: row i has timestamp i."""

    def rows(self, found: Int64Array) -> Int64Array:
        """Return the recorded rows of places in `times_M`."""
        return found if self.row_M is None else self.row_M[found]


def repair_clock(times_N: Int64Array, policy: BadClock) -> Clock:
    """Return timestamps made to rise strictly, by a named policy.

    `sort` orders rows by time and keeps the first recorded of equal times; `drop` leaves out every row that is not
    later than all rows before it. Both leave a clock that rises already as it is.

    Raises:
        AlignError: The timestamps do not rise, under "error". Rows and times are named.
    """
    time_N = np.asarray(times_N, dtype=np.int64)
    bad = np.flatnonzero(time_N[1:] <= time_N[:-1])
    if not len(bad):
        return Clock(time_N)
    if policy == "error":
        row = int(bad[0])
        raise AlignError(
            f"timestamps do not rise: row {row} is at {int(time_N[row])} ns, row {row + 1} at {int(time_N[row + 1])} ns "
            f"({len(bad)} such pairs among {len(time_N)} rows). Repair the data, or use on_bad_clock='sort' or 'drop'."
        )
    if policy == "sort":
        row_M = np.argsort(time_N, kind="stable").astype(np.int64)
        sorted_N = time_N[row_M]
        row_M = row_M[np.concatenate([[True], sorted_N[1:] > sorted_N[:-1]])]
    else:
        latest_N = np.maximum.accumulate(time_N)
        row_M = np.flatnonzero(np.concatenate([[True], time_N[1:] > latest_N[:-1]])).astype(np.int64)
    return Clock(time_N[row_M], row_M)


def steps_before_ns(dataset: Dataset, episode: int, steps_T: Int64Array, back: int) -> Int64Array:
    """Return the time `back` steps before each of `steps_T`, which lie inside the episode.

    Before step 0 the step clock is mirrored: the step before 0 is as far from it as step 1 is.
    """
    before_T = np.asarray(steps_T, dtype=np.int64) - back
    last = int(dataset.num_steps_E[episode]) - 1
    time_T = dataset.step_times_ns(episode, np.minimum(np.abs(before_T), last))
    first = int(dataset.step_times_ns(episode, np.zeros(1, dtype=np.int64))[0])
    return np.where(before_T < 0, 2 * first - time_T, time_T)


class StreamClocks:
    """The clocks of one dataset's streams, each checked once. Thread-safe.

    Remembers one byte per episode and stream that was looked at, and a few repaired clocks.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._verdict: dict[str, np.ndarray] = {}
        self._repaired: OrderedDict[tuple[int, str, str], Clock] = OrderedDict()
        self._lock = ForkLock()

    def __reduce__(self) -> tuple[type[StreamClocks], tuple[Dataset]]:
        return (StreamClocks, (self.dataset,))  # what is remembered is quickly found again

    def clock(self, episode: int, stream: str, request: StreamRequest) -> Clock:
        """Return the stream's own clock in an episode (`offset_s` not added).

        Raises:
            AlignError: Timestamps that do not rise strictly, under on_bad_clock="error".
        """
        times_N = self.dataset.stream_times_ns(episode, stream)
        with self._lock:
            verdict_E = self._verdict.setdefault(stream, np.zeros(self.dataset.num_episodes, dtype=np.int8))
        if verdict_E[episode] == _UNKNOWN:
            verdict_E[episode] = _RISES if bool((times_N[1:] > times_N[:-1]).all()) else _BAD
        return Clock(times_N) if verdict_E[episode] == _RISES else self._repair(episode, stream, times_N, request)

    def _repair(self, episode: int, stream: str, times_N: Int64Array, request: StreamRequest) -> Clock:
        key = (episode, stream, request.on_bad_clock)
        with self._lock:
            found = self._repaired.get(key)
        if found is None:
            found = repair_clock(times_N, request.on_bad_clock)
            with self._lock:
                self._repaired[key] = found
                while len(self._repaired) > _MAX_REPAIRED:
                    self._repaired.popitem(last=False)
        return found
