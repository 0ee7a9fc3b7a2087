"""What is known of one batch in the works, and of the place of one worker; see `crew`, which does the work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trajload.errors import TrajloadError
from trajload.pipeline.shared_batch import Arena, SharedBuffer
from trajload.pipeline.worker_process import WorkerProcess

__all__ = ["Seat", "Step", "once_more"]


@dataclass(slots=True, eq=False)
class Step:
    """One batch in the works."""

    train_step: int
    rows: slice
    arena: Arena
    buffer: SharedBuffer
    pending: set[int]
    """Workers that have not delivered their part."""
    parts: dict[int, dict[str, Any]] = field(default_factory=dict)
    errors: dict[int, TrajloadError] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one worker; processes come and go."""

    number: int
    process: WorkerProcess | None = None
    sent: set[int] = field(default_factory=set)
    """Train_steps handed to this process."""
    known: set[int] = field(default_factory=set)
    """Buffers that this process has mapped."""
    ending: list[tuple[int, list[SharedBuffer]]] = field(default_factory=list)
    """Ended generations whose memory this process may still write."""
    has_failed: bool = False
    """It has told of an error, and makes nothing more in this generation."""
    since: float = 0.0
    """Last sign of life, or when it got work after having none."""
    deaths: tuple[int, int] = (-1, 0)
    """(train_step, how often in a row)."""
    hangs: tuple[int, int] = (-1, 0)
    start_deaths: int = 0
    careful_until: int = -1
    """Up to this train_step it gets one at a time, so that the one that kills it is known."""


def once_more(count: tuple[int, int], train_step: int) -> tuple[int, int]:
    """Return (train_step, how often in a row) after one time more."""
    return (train_step, count[1] + 1 if count[0] == train_step else 1)
