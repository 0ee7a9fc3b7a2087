"""Number every window of a dataset 0..num_windows-1, by prefix sums over its episodes."""

# Shapes: E episodes, B windows

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajload.errors import ConfigError, WindowError
from trajload.sampling.order_base import check_range
from trajload.sampling.permute import njit
from trajload.spec import Window
from trajload.types import BoolArray, Int64Array

__all__ = ["MAX_NUM_WINDOWS", "WindowTable"]

MAX_NUM_WINDOWS = 2**62
"""So that an offset plus a batch of rows always fits int64, and half a Feistel domain fits 31 bits."""


@njit
def _find(first_E1: Any, window_id_B: Any, episode_B: Any) -> None:
    """Write the last episode whose first id is not above each id: of several that begin there, the others are empty.

    Halving without branches, all ids side by side: a fraction of the time of `np.searchsorted`, whose branches cannot
    be predicted.
    """
    episode_B[:] = 0
    size = first_E1.size
    while size > 1:
        half = size >> 1
        for b in range(window_id_B.size):
            middle = episode_B[b] + half
            episode_B[b] = middle if first_E1[middle] <= window_id_B[b] else episode_B[b]
        size -= half


class WindowTable:
    """All windows of a dataset under one `Window` spec: (episode, anchor step) <-> window id.

    Ids follow the episodes' order, then the anchors' order. Holds one int64 per episode, nothing per window: numbers
    come in closed form. `restricted` keeps some windows only, at the cost of a few int64 per run of neighbours kept.
    The anchor of a window without history is its first step, its *start*. Immutable and thread-safe.
    """

    def __init__(
        self,
        num_steps_E: Int64Array,
        window: Window,
        *,
        reach: tuple[int, int] | None = None,
        is_chosen_E: BoolArray | None = None,
    ) -> None:
        """Count the windows of each episode.

        Args:
            num_steps_E: Steps of each episode (E,), >= 0. An episode of 0 steps gives no window.
            window: Length, stride, dilation and padding of a window.
            reach: Steps from the anchor to the first and to the last step that any stream takes, (<= 0, >= 0); those
                of the window itself by default. Under pad="none" all of them lie inside the episode.
            is_chosen_E: Which episodes are taken (E,), None for all. The others give no window; episodes keep their
                numbers.

        Raises:
            ConfigError: A negative count, not one dimension, or 2**62 windows or more.
            WindowError: No episode gives a window.
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
        first, last = reach or (window.first_offset, window.first_offset + window.span - 1)
        span = last - first + 1
        if window.pad == "none":
            # The first window as early as it can, then every stride up to the last that still ends inside.
            count_E = np.where(steps_E >= span, (steps_E - span) // window.stride + 1, 0)
        else:
            count_E = (steps_E - 1) // window.stride + 1  # 0 steps: -1 // stride + 1 = 0
        self._first_anchor = -first if window.pad == "none" else 0
        if is_chosen_E is not None:
            if np.shape(is_chosen_E) != steps_E.shape:
                raise ConfigError(
                    f"is_chosen_E has shape {np.shape(is_chosen_E)}: expected one for each of {len(steps_E)} episodes."
                )
            count_E, steps_E = np.where(is_chosen_E, count_E, 0), steps_E[is_chosen_E]
        # The float sum is only compared with a bound far above its rounding error.
        if float(count_E.sum(dtype=np.float64)) >= MAX_NUM_WINDOWS:
            raise ConfigError(f"the dataset has too many windows: expected fewer than 2**62 = {MAX_NUM_WINDOWS}.")
        self._first_E1 = np.zeros(len(count_E) + 1, dtype=np.int64)
        np.cumsum(count_E, out=self._first_E1[1:])
        self._num_windows = int(self._first_E1[-1])
        self._kept: _Runs | None = None
        if self._num_windows == 0:
            longest = int(steps_E.max()) if steps_E.size else 0
            own = f", streams with deltas reach from step {first} to {last}" if reach and span != window.span else ""
            why = (
                f"the longest of {len(steps_E)} episodes has {longest} steps, a window spans {span} "
                f"(num_steps={window.num_steps}, dilation={window.dilation}{own}). "
            )
            raise WindowError(
                f"no episode is long enough for a window: {why}"
                + ("Ask for fewer steps, or for pad='edge'." if longest else "Every episode is empty.")
            )

    def anchors_of(self, episode: int) -> Int64Array:
        """Return the anchors of an episode's windows, rising; of a restricted table those before the restriction."""
        first_E1 = self._first_E1 if self._kept is None else self._kept.slot_E1
        count = int(first_E1[episode + 1] - first_E1[episode])
        return self._first_anchor + self.window.stride * np.arange(count, dtype=np.int64)

    def restricted(self, first_R: Int64Array, count_R: Int64Array) -> WindowTable:
        """Return the table of some of these windows, renumbered without gaps.

        Args:
            first_R: First window id of each run of windows kept, (R,), rising.
            count_R: Windows of each run, at least 1; runs do not touch an id twice.

        Raises:
            WindowError: No window is kept.
        """
        if self._kept is not None:
            raise ConfigError("a restricted WindowTable cannot be restricted again: restrict the whole one.")
        first_R, count_R = np.asarray(first_R, dtype=np.int64), np.asarray(count_R, dtype=np.int64)
        if not len(first_R):
            raise WindowError(
                f"no window is left of {self._num_windows}: each has a step without a row of a stream asked for with "
                "on_miss='drop', or a time outside its episode. Raise tolerance_s, or use on_miss='mask' or pad='edge'."
            )
        kept_R1 = np.zeros(len(first_R) + 1, dtype=np.int64)
        np.cumsum(count_R, out=kept_R1[1:])
        out = copy.copy(self)
        out._kept = _Runs(self._first_E1, first_R, kept_R1)
        # Windows kept before each episode: of whole runs before it, and of the run it cuts.
        run_E1 = np.searchsorted(first_R, self._first_E1, side="right") - 1
        inside_E1 = np.minimum(self._first_E1 - first_R[np.maximum(run_E1, 0)], count_R[np.maximum(run_E1, 0)])
        out._first_E1 = np.where(run_E1 < 0, 0, kept_R1[np.maximum(run_E1, 0)] + inside_E1)
        out._num_windows = int(kept_R1[-1])
        return out

    def to_json(self) -> dict[str, Any]:
        """Return what a restriction adds to a run's configuration: how many windows are left out, and a digest."""
        if self._kept is None:
            return {}
        digest = hashlib.sha256(self._kept.first_R.astype("<i8").tobytes())
        digest.update(self._kept.kept_R1.astype("<i8").tobytes())
        num_dropped = int(self._kept.slot_E1[-1]) - self._num_windows
        return {"dropped": {"num_windows": num_dropped, "digest": digest.hexdigest()[:32]}}

    @property
    def num_windows(self) -> int:
        return self._num_windows

    @property
    def has_gaps(self) -> bool:
        """Whether windows are left out, so that neighbours by number may lie farther apart than the stride."""
        return self._kept is not None

    @property
    def first_E1(self) -> Int64Array:
        """Id of each episode's first window, and `num_windows` at the end: int64 (E + 1,). Not to be written."""
        return self._first_E1

    @property
    def num_episodes(self) -> int:
        return len(self._first_E1) - 1

    def locate(self, window_id_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (episode_B, anchor_B) of window ids: int64 arrays of the same shape.

        Raises:
            WindowError: An id outside [0, num_windows).
        """
        window_id_B = check_range("window id", window_id_B, self._num_windows)
        episode_B = np.empty_like(window_id_B)
        _find(self._first_E1, np.ascontiguousarray(window_id_B).reshape(-1), episode_B.reshape(-1))
        start_B = self._first_anchor + (self._slots(window_id_B) - self._slot_E1[episode_B]) * self.window.stride
        return episode_B, np.asarray(start_B, dtype=np.int64)

    def window_id(self, episode_B: Int64Array, start_B: Int64Array) -> Int64Array:
        """Return the ids of the windows that start at `start_B` of `episode_B`; the inverse of `locate`.

        Raises:
            WindowError: An episode that does not exist, or a step where no window starts.
        """
        episode_B = check_range("episode", episode_B, self.num_episodes, "num_episodes")
        start_B = np.asarray(start_B, dtype=np.int64)
        rank_B, rest_B = np.divmod(start_B - self._first_anchor, self.window.stride)
        count_B = self._slot_E1[episode_B + 1] - self._slot_E1[episode_B]
        is_bad_B = np.asarray((rank_B < 0) | (rank_B >= count_B) | (rest_B != 0))
        slot_B = self._slot_E1[episode_B] + rank_B
        is_dropped_B = np.zeros_like(is_bad_B)
        if self._kept is not None:
            slot_B, is_dropped_B = self._kept.rank(slot_B)
        if is_bad_B.any() or is_dropped_B.any():
            i = int(np.flatnonzero(is_bad_B | is_dropped_B)[0])
            episode, start, count = (
                int(np.broadcast_to(x, is_bad_B.shape).flat[i]) for x in (episode_B, start_B, count_B)
            )
            first, last = self._first_anchor, self._first_anchor + (count - 1) * self.window.stride
            expected = (
                "it is left out, see on_miss='drop'"
                if not is_bad_B.flat[i]
                else "the episode gives no window"
                if not count
                else f"expected a multiple of stride={self.window.stride} in [{first}, {last}]"
                if not first
                else f"expected {first} plus a multiple of stride={self.window.stride}, up to {last}"
            )
            raise WindowError(f"no window starts at step {start} of episode {episode}: {expected}.")
        return np.asarray(slot_B, dtype=np.int64)

    @property
    def _slot_E1(self) -> Int64Array:
        return self._first_E1 if self._kept is None else self._kept.slot_E1

    def _slots(self, window_id_B: Int64Array) -> Int64Array:
        """Return the place of windows among those there were before a restriction."""
        return window_id_B if self._kept is None else self._kept.slots(window_id_B)

    def __repr__(self) -> str:
        return f"WindowTable({self._num_windows} windows of {self.num_episodes} episodes, {self.window})"


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Which windows of a table are kept: runs of neighbouring *slots*, the ids before the restriction."""

    slot_E1: Int64Array
    """Slots before each episode."""
    first_R: Int64Array
    kept_R1: Int64Array
    """Windows kept before each run."""

    def slots(self, window_id_B: Int64Array) -> Int64Array:
        run_B = np.searchsorted(self.kept_R1, window_id_B, side="right") - 1
        return np.asarray(self.first_R[run_B] + (window_id_B - self.kept_R1[run_B]), dtype=np.int64)

    def rank(self, slot_B: Int64Array) -> tuple[Int64Array, BoolArray]:
        """Return the id of each slot, and where it has none."""
        run_B = np.maximum(np.searchsorted(self.first_R, slot_B, side="right") - 1, 0)
        inside_B = slot_B - self.first_R[run_B]
        is_out_B = (inside_B < 0) | (inside_B >= self.kept_R1[run_B + 1] - self.kept_R1[run_B])
        return np.asarray(self.kept_R1[run_B] + inside_B, dtype=np.int64), np.asarray(is_out_B)
