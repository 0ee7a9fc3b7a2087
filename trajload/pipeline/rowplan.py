"""Which rows of a stream's track a window takes: the one place where window, clock and request meet."""

# Shapes: T places of one stream in a window

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from trajload.align.clocked import ClockedRows, align_clocked
from trajload.align.clocks import StreamClocks, steps_before_ns
from trajload.align.rows import default_tolerance_ns, stepwise_rows
from trajload.errors import DecodeError
from trajload.pipeline.config import StreamChoice
from trajload.refs import Track
from trajload.sources.base import Dataset
from trajload.spec import Window
from trajload.types import BoolArray, Int64Array

__all__ = ["RowPlanner", "StreamRows"]


@dataclass(frozen=True, slots=True, eq=False)
class StreamRows:
    """Rows of one stream for one window."""

    rows: Int64Array
    """Of the track, to be decoded; (T,), or as `ClockedRows.rows`."""
    is_pad_T: BoolArray
    is_outside_T: BoolArray
    """Outside the episode; `is_pad_T` is that or a miss."""
    clocked: ClockedRows | None = None


class RowPlanner:
    """Plans the rows of windows of one dataset. Thread-safe.

    Args:
        dataset: Where steps and clocks are known.
        window: The window spec.
    """

    def __init__(self, dataset: Dataset, window: Window) -> None:
        self.dataset = dataset
        self.window = window
        self.clocks = StreamClocks(dataset)

    def plan(
        self,
        choice: StreamChoice,
        track: Track,
        episode: int,
        anchor: int,
        own: tuple[Int64Array, BoolArray],
    ) -> StreamRows:
        """Return the rows of one stream in the window at `anchor`.

        Args:
            choice: The stream and how it is wanted.
            track: Where it stands in the episode.
            episode: Of the window.
            anchor: Of the window.
            own: The window's own steps and which lie outside, from `stepwise_rows`: most streams take just these.

        Raises:
            AlignError: A miss under on_miss="error", or a clock that does not rise.
            DecodeError: A stepwise stream with fewer rows than steps.
        """
        spec, places = choice.spec, choice.places
        steps_T, is_outside_T = own
        if not places.is_own:
            num_steps = int(self.dataset.num_steps_E[episode])
            steps_T, is_outside_T = stepwise_rows(anchor, num_steps, self.window, places.steps_T)
        if spec.is_text and spec.clock == "stepwise" and track.num_rows == 1:
            return StreamRows(np.zeros_like(steps_T), is_outside_T, is_outside_T)
        if spec.clock == "clocked":
            return self._clocked(choice, episode, steps_T, is_outside_T)
        if track.num_rows <= int(steps_T[-1]):
            raise DecodeError(
                f"stream {spec.name!r} is too short: got {track.num_rows} rows, expected at least {int(steps_T[-1]) + 1} for this window. "
                "Run 'trajload doctor' on the dataset.",
            )
        return StreamRows(steps_T, is_outside_T, is_outside_T)

    def _clocked(self, choice: StreamChoice, episode: int, steps_T: Int64Array, is_outside_T: BoolArray) -> StreamRows:
        times_T = self.dataset.step_times_ns(episode, steps_T)
        if choice.places.ns_T is not None:
            times_T = times_T + choice.places.ns_T
            is_outside_T = self.is_outside(choice, episode, times_T)
        found = self.align(choice, episode, times_T, steps_T, is_outside_T)
        return StreamRows(found.rows, found.is_pad_T, is_outside_T, found)

    def is_outside(self, choice: StreamChoice, episode: int, times: Int64Array) -> BoolArray:
        """Return which times lie before the episode's first or after its last step."""
        ends = np.array([0, int(self.dataset.num_steps_E[episode]) - 1], dtype=np.int64)
        first, last = self.dataset.step_times_ns(episode, ends).tolist()
        slack = choice.places.tolerance_ns
        return np.asarray((times < first - slack) | (times > last + slack))

    def align(
        self,
        choice: StreamChoice,
        episode: int,
        times_T: Int64Array,
        steps_T: Int64Array,
        is_outside_T: BoolArray,
    ) -> ClockedRows:
        """Return the rows of a clocked stream at `times_T`, or of the intervals that end at `steps_T`."""
        request = choice.request
        clock = self.clocks.clock(episode, choice.name, request)
        since_T = None
        if request.align == "interval":
            since_T = steps_before_ns(self.dataset, episode, steps_T, choice.places.back) - request.offset_ns
        found = align_clocked(
            # the few times asked for are moved to the stream's clock, not its many timestamps to the step clock
            times_T - request.offset_ns,
            is_outside_T,
            clock.times_M,
            request,
            tolerance_ns=default_tolerance_ns(choice.spec, request),
            since_T=since_T,
            steps_T=steps_T,
        )
        return found if clock.row_M is None else replace(found, rows=clock.rows(found.rows))
