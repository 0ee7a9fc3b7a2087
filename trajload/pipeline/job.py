"""One batch under construction, and one window of it that is read but not decoded."""

# Shapes: B windows, T steps

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trajload.collate.slots import BatchSlots
from trajload.pipeline.write import StreamWork
from trajload.sampling.sampler import BatchRefs
from trajload.types import BoolArray, Int64Array

__all__ = ["Job", "RowWork"]


@dataclass(slots=True)
class Job:
    """One batch under construction. Rows are independent: each is written by one task."""

    train_step: int
    refs: BatchRefs
    """Of this rank's rows; what was planned, before any substitution."""
    slots: BatchSlots
    window_id_B: Int64Array
    """What each row really holds; differs from `refs` where a bad window was replaced."""
    episode_B: Int64Array
    start_B: Int64Array
    remaining: int
    """Pieces of work that are not done."""
    errors: list[tuple[int, BaseException]] = field(default_factory=list)
    """(row, what went wrong)."""
    opened_at: float = 0.0
    """When its planning began, by `time.perf_counter`."""
    draws: dict[int, list[Any]] | None = None
    """Where asked for: what the transforms drew for each row."""

    @property
    def num_rows(self) -> int:
        return len(self.window_id_B)


@dataclass(frozen=True, slots=True)
class RowWork:
    """One window, read but not decoded."""

    window_id: int
    episode: int
    start: int
    """Its anchor: the first step, without history."""
    steps_T: Int64Array
    """The window's own steps, clamped into the episode."""
    is_pad_T: BoolArray
    streams: list[StreamWork]
