"""The pieces of work that a batch is cut into, each done by one decoder thread.

Whatever the pieces are, the batch equals what `BatchBuilder.build` gives, which knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trajload.decode import DecodeContext
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.job import Job, RowWork

__all__ = ["RowUnit", "RowUnits", "Unit", "UnitPlanner"]


class Unit(Protocol):
    """A piece of work on one batch. `read` runs in a reader thread, then `run` in a decoder thread."""

    @property
    def has_reads(self) -> bool:
        """Whether `read` does anything: units without go straight to a decoder thread."""
        ...

    @property
    def job(self) -> Job: ...

    @property
    def row(self) -> int:
        """The first row it writes: of several errors in a batch, that of the smallest row is raised."""
        ...

    def read(self) -> None:
        """Fetch bytes. What fails here is tried again by `run`, whose error is the one that counts."""
        ...

    def run(self, context: DecodeContext) -> None:
        """Write the batch's memory, or raise."""
        ...


class UnitPlanner(Protocol):
    """Cuts batches into units. Called for consecutive train_steps, by one thread."""

    def units(self, job: Job) -> Sequence[Unit]:
        """Return the work on a fresh job, in the order in which it should begin; none if it was done at once."""
        ...

    def close(self) -> None:
        """Forget what was kept between batches. All threads have ended."""
        ...


class RowUnit:
    """One row: all streams and keys, or `choices` only, where the rest of the row is in place before this runs."""

    has_reads = True

    def __init__(
        self, builder: BatchBuilder, job: Job, row: int, choices: Sequence[StreamChoice] | None = None
    ) -> None:
        self._builder = builder
        self.job = job
        self.row = row
        self._choices = choices
        self._work: RowWork | None = None

    def read(self) -> None:
        self._work = self._builder.read_row(self.job, self.row, self._choices)

    def run(self, context: DecodeContext) -> None:
        # A row that could not be read is repeated from the start here, where the policy for bad windows lives.
        if self._choices is None:
            self._builder.build_row(self.job, self.row, context, self._work)
        else:
            self._builder.build_part(self.job, self.row, context, self._choices, self._work)


class RowUnits:
    """One unit for each row: what works for every stream and order."""

    def __init__(self, builder: BatchBuilder) -> None:
        self._builder = builder

    def units(self, job: Job) -> Sequence[Unit]:
        job.slots.open()
        return [RowUnit(self._builder, job, b) for b in range(job.num_rows)]

    def close(self) -> None:
        pass
