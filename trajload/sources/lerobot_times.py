"""The step clock of a LeRobot dataset: uniform at its rate, or its `timestamp` column where that says otherwise."""

# Shapes: N rows

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from trajload.errors import SourceError
from trajload.spec import UniformClock
from trajload.types import Int64Array

__all__ = ["MAX_DEVIATION_S", "StepTimes"]

MAX_DEVIATION_S = 0.001
_UNKNOWN, _UNIFORM, _COLUMN = -1, 0, 1


class StepTimes:
    """Step times of every episode, int64 nanoseconds. Thread-safe: what is remembered is the same for any caller.

    An episode whose timestamps lie within 1 ms of index / fps has exactly the uniform times, free of the rounding of
    float32 seconds; any other has its column, rounded to nanoseconds from float64.
    """

    def __init__(self, fps: Fraction, num_episodes: int) -> None:
        self.clock = UniformClock(rate_hz=fps)
        self._which_E = np.full(num_episodes, _UNKNOWN, dtype=np.int8)

    def times_ns(self, episode: int, steps: Int64Array, column: Callable[[], np.ndarray | None]) -> Int64Array:
        """Return the times of `steps`, any shape.

        Args:
            episode: Position of the episode.
            steps: int64, inside the episode.
            column: Reads the episode's timestamps (N,) in seconds; None where it has none.
        """
        if self._which_E[episode] == _UNIFORM:
            return self.clock.times_ns(steps)
        time_N = column()
        if time_N is None or self._is_uniform(time_N):
            self._which_E[episode] = _UNIFORM
            return self.clock.times_ns(steps)
        if self._which_E[episode] == _UNKNOWN:
            _check_not_falling(time_N)
        self._which_E[episode] = _COLUMN
        return np.rint(time_N.astype(np.float64)[steps] * 1e9).astype(np.int64)

    def uniform(self, episode: int) -> UniformClock | None:
        """Return the clock of an episode that is known to keep it, else None."""
        return self.clock if self._which_E[episode] == _UNIFORM else None

    def _is_uniform(self, time_N: np.ndarray) -> bool:
        if not np.isfinite(time_N).all():
            row = int(np.flatnonzero(~np.isfinite(time_N))[0])
            raise SourceError(f"timestamp of step {row} is {time_N[row]}: expected finite seconds. Repair the column.")
        due_N = self.clock.times_ns(np.arange(len(time_N), dtype=np.int64)) / 1e9
        # float32 seconds are coarser than 1 ms after some four hours: their own rounding is no deviation.
        slack_N = np.maximum(MAX_DEVIATION_S, np.spacing(np.abs(time_N)).astype(np.float64))
        return bool((np.abs(time_N.astype(np.float64) - due_N) <= slack_N).all())


def _check_not_falling(time_N: np.ndarray) -> None:
    """Refuse rows that run backwards: row i would not be step i, and frames would belong to other rows."""
    falls = np.flatnonzero(np.diff(time_N) < 0)
    if falls.size:
        row = int(falls[0])
        raise SourceError(
            f"timestamps fall at step {row + 1}: got {time_N[row + 1]} s after {time_N[row]} s, expected rising times. The rows of "
            "the episode are out of order, or two recordings were joined: sort or split them."
        )
