"""What each window of a dataset costs by a cost table: its rows, and the frames before them, counted window by window."""

# Shapes: B windows, E episodes, S steps of an episode

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from trajload.costs.epoch import check_table
from trajload.costs.leads import row_of_step, window_leads
from trajload.costs.table import CostTable
from trajload.errors import ConfigError, TrajloadError
from trajload.pipeline.config import StreamChoice
from trajload.sources.base import Dataset
from trajload.spec import Window
from trajload.storage.locks import ForkLock
from trajload.types import Int64Array

__all__ = ["WindowCosts"]

_MAX_BYTES = 32 << 20


class WindowCosts:
    """Costs of the windows of one dataset, in whole nanoseconds: the same on every rank and machine. Thread-safe.

    What the frames before a window's rows cost depends on where it starts. It is worked out for all starts of an episode at
    once and kept, up to 32 MiB.

    Args:
        table: Of this dataset.
        dataset: Where episodes stand.
        choices: Streams of the batch that the dataset has.
        window: The window spec.

    Raises:
        ConfigError: A table of other data, or one without any of the streams of the batch.
    """

    def __init__(self, table: CostTable, dataset: Dataset, choices: Sequence[StreamChoice], window: Window) -> None:
        check_table(table, dataset)
        num_rows: Mapping[str, int] = {c.name: c.places.num_places for c in choices}
        if not set(num_rows) & set(table.row_ns):
            raise ConfigError(
                f"load_weights have costs of {', '.join(map(repr, table.row_ns))}, of none of the streams of the batch: "
                f"{', '.join(map(repr, num_rows))}."
            )
        self._dataset, self._window = dataset, window
        self._row_ns_E = table.window_ns(num_rows)
        self._leading = [(c, table.lead_ns[c.name]) for c in choices if c.name in table.lead_ns]
        self._lock = ForkLock()
        self._kept: OrderedDict[int, Int64Array] = OrderedDict()
        self._num_bytes = 0

    def of(self, episode_B: Int64Array, start_B: Int64Array) -> Int64Array:
        """Return what the windows with anchors `start_B` in `episode_B` cost, int64 (B,)."""
        cost_B = self._row_ns_E[episode_B]
        if not self._leading:
            return cost_B
        for i, (episode, start) in enumerate(zip(episode_B.tolist(), start_B.tolist(), strict=True)):
            cost_B[i] += self._lead_ns(episode)[start]
        return cost_B

    def _lead_ns(self, episode: int) -> Int64Array:
        """Return what the frames before a window's rows cost, for each step of an episode as anchor, (S,)."""
        with self._lock:
            found = self._kept.get(episode)
            if found is not None:
                self._kept.move_to_end(episode)
                return found
        made = self._work_out(episode)
        with self._lock:
            if episode not in self._kept:
                self._num_bytes += made.nbytes
            self._kept[episode] = made
            while self._num_bytes > _MAX_BYTES and len(self._kept) > 1:
                _, old = self._kept.popitem(last=False)
                self._num_bytes -= old.nbytes
        return made

    def _work_out(self, episode: int) -> Int64Array:
        num_steps = int(self._dataset.num_steps_E[episode])
        total_S = np.zeros(num_steps, dtype=np.int64)
        anchor_S = np.arange(num_steps, dtype=np.int64)
        for choice, lead_ns_E in self._leading:
            lead_ns = int(lead_ns_E[episode])
            if not lead_ns:
                continue
            try:
                track = self._dataset.track(episode, choice.name)
            except TrajloadError:
                continue  # whoever loads the window learns what is wrong with it
            if track is None or not track.num_rows:
                continue
            row_S = row_of_step(self._dataset, episode, choice.name)
            total_S += lead_ns * window_leads(track, anchor_S, num_steps, self._window, choice.places.steps_T, row_S)
        return total_S
