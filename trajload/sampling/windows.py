"""Number every window of a dataset 0..num_windows-1, by prefix sums over its episodes."""

# Shapes: E episodes, B windows

from __future__ import annotations

import numpy as np

from trajload.errors import ConfigError, WindowError
from trajload.spec import Window
from trajload.types import BoolArray, Int64Array

__all__ = ["MAX_NUM_WINDOWS", "WindowTable"]

MAX_NUM_WINDOWS = 2**62
"""So that an offset plus a batch of rows always fits int64, and half a Feistel domain fits 31 bits."""


class WindowTable:
    """All windows of a dataset under one `Window` spec: (episode, start) <-> window id, in closed form.

    Ids follow the episodes' order, then the starts' order. Holds one int64 per episode, nothing per window.
    Immutable and thread-safe.
    """

    def __init__(self, num_steps_E: Int64Array, window: Window, *, is_chosen_E: BoolArray | None = None) -> None:
        """Count the windows of each episode.

        Args:
            num_steps_E: Steps of each episode (E,), >= 0. An episode of 0 steps gives no window.
            window: Length, stride, dilation and padding of a window.
            is_chosen_E: Which episodes are taken (E,), None for all. The others give no window; episodes keep their
                numbers.

        Raises:
            ConfigError: A negative count, not one dimension, or 2**62 windows or more.
            WindowError: No episode that is taken gives a window.
        """
        steps_E = np.asarray(num_steps_E)
        if steps_E.ndim != 1 or (steps_E.size and steps_E.dtype.kind not in "iu"):
            raise ConfigError(
                f"num_steps_E is unusable: got shape {steps_E.shape} of {steps_E.dtype}, expected (E,) integers."
            )
        steps_E = steps_E.astype(np.int64)
        if steps_E.size and int(steps_E.min()) < 0:
            episode = int(steps_E.argmin())
            raise ConfigError(f"episode {episode} has {int(steps_E[episode])} steps: expected 0 or more.")
        self.window = window
        if window.pad == "none":
            # Starts 0, stride, ... up to the last one whose window still ends inside the episode.
            count_E = np.where(steps_E >= window.span, (steps_E - window.span) // window.stride + 1, 0)
        else:
            count_E = (steps_E - 1) // window.stride + 1  # 0 steps: -1 // stride + 1 = 0
        is_short_E = count_E == 0
        if is_chosen_E is not None:
            if np.shape(is_chosen_E) != steps_E.shape:
                raise ConfigError(
                    f"is_chosen_E has shape {np.shape(is_chosen_E)}: expected one for each of {len(steps_E)} episodes."
                )
            is_short_E &= is_chosen_E
            count_E, steps_E = np.where(is_chosen_E, count_E, 0), steps_E[is_chosen_E]
        # The float sum is only compared with a bound far above its rounding error.
        if float(count_E.sum(dtype=np.float64)) >= MAX_NUM_WINDOWS:
            raise ConfigError(f"the dataset has too many windows: expected fewer than 2**62 = {MAX_NUM_WINDOWS}.")
        self._first_E1 = np.zeros(len(count_E) + 1, dtype=np.int64)
        np.cumsum(count_E, out=self._first_E1[1:])
        self._num_windows = int(self._first_E1[-1])
        self._num_short_episodes = int(is_short_E.sum())
        if self._num_windows == 0:
            longest = int(steps_E.max()) if steps_E.size else 0
            raise WindowError(
                f"no episode is long enough for a window: the longest of {len(steps_E)} episodes has {longest} steps, "
                f"a window spans {window.span} (num_steps={window.num_steps}, dilation={window.dilation}). "
                + ("Ask for fewer steps, or for pad='edge'." if longest else "Every episode is empty.")
            )

    @property
    def num_windows(self) -> int:
        return self._num_windows

    @property
    def first_E1(self) -> Int64Array:
        """Id of each episode's first window, and `num_windows` at the end: int64 (E + 1,). Not to be written."""
        return self._first_E1

    @property
    def num_episodes(self) -> int:
        return len(self._first_E1) - 1

    @property
    def num_short_episodes(self) -> int:
        """Episodes taken that give no window: empty, or shorter than a window under pad='none'."""
        return self._num_short_episodes

    def num_windows_of(self, episode_B: Int64Array) -> Int64Array:
        """Return how many windows each of `episode_B` gives; episodes must exist."""
        episode_B = self._check_episodes(episode_B)
        return self._first_E1[episode_B + 1] - self._first_E1[episode_B]

    def locate(self, window_id_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (episode_B, start_B) of window ids: int64 arrays of the same shape.

        Raises:
            WindowError: An id outside [0, num_windows).
        """
        window_id_B = np.asarray(window_id_B, dtype=np.int64)
        if window_id_B.size:
            low, high = int(window_id_B.min()), int(window_id_B.max())
            if low < 0 or high >= self._num_windows:
                raise WindowError(
                    f"window id {low if low < 0 else high} does not exist: expected 0 <= id < {self._num_windows}."
                )
        # side="right": of several episodes that begin at the same id, all but the last are without windows.
        episode_B = np.asarray(np.searchsorted(self._first_E1, window_id_B, side="right"), dtype=np.int64) - 1
        start_B = (window_id_B - self._first_E1[episode_B]) * self.window.stride
        return np.asarray(episode_B, dtype=np.int64), np.asarray(start_B, dtype=np.int64)

    def window_id(self, episode_B: Int64Array, start_B: Int64Array) -> Int64Array:
        """Return the ids of the windows that start at `start_B` of `episode_B`; the inverse of `locate`.

        Raises:
            WindowError: An episode that does not exist, or a step where no window starts.
        """
        episode_B = self._check_episodes(episode_B)
        start_B = np.asarray(start_B, dtype=np.int64)
        rank_B, rest_B = np.divmod(start_B, self.window.stride)
        count_B = self._first_E1[episode_B + 1] - self._first_E1[episode_B]
        is_bad_B = (rank_B < 0) | (rank_B >= count_B) | (rest_B != 0)
        if is_bad_B.any():
            i = int(np.flatnonzero(is_bad_B)[0])
            episode, start, count = (
                int(np.broadcast_to(x, is_bad_B.shape).flat[i]) for x in (episode_B, start_B, count_B)
            )
            last = (count - 1) * self.window.stride
            expected = (
                f"expected a multiple of stride={self.window.stride} in [0, {last}]"
                if count
                else "the episode gives no window"
            )
            raise WindowError(f"no window starts at step {start} of episode {episode}: {expected}.")
        return np.asarray(self._first_E1[episode_B] + rank_B, dtype=np.int64)

    def _check_episodes(self, episode_B: Int64Array) -> Int64Array:
        episode_B = np.asarray(episode_B, dtype=np.int64)
        if episode_B.size:
            low, high = int(episode_B.min()), int(episode_B.max())
            if low < 0 or high >= self.num_episodes:
                raise WindowError(
                    f"episode {low if low < 0 else high} does not exist: expected 0 <= episode < {self.num_episodes}."
                )
        return episode_B

    def __repr__(self) -> str:
        return f"WindowTable({self._num_windows} windows of {self.num_episodes} episodes, {self.window})"
