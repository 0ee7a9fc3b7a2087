"""One gather a batch: low-dimensional streams and keys of all rows, copied by address in one compiled call.

A window of state is a few kilobytes, which plain planning, reading and decoding take a hundred times longer to reach
than to copy. Here a batch costs a few calls, whatever its number of rows. It equals what `BatchBuilder.build` gives:
where anything is unusual (a row in quarantine, damage, an error of any kind), the gather steps back for the whole batch.
"""

# Shapes: G rows to write, B rows of the batch

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from trajload.decode import DecodeContext
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.gather_call import GatheredRows, SourceGather, gather_rows, source_gather
from trajload.pipeline.gather_table import ResidentBudget, choose_gathered
from trajload.pipeline.job import Job
from trajload.pipeline.units import QueuedUnits, RowUnit, Unit, row_units
from trajload.pipeline.video_units import VideoPart, video_units
from trajload.types import Int64Array

__all__ = ["GatherPart", "GatherUnit", "GatherUnits", "make_gather"]

_UNIT_BYTES = 8 << 20
"""A batch of more is gathered by several threads."""
_TOGETHER_BYTES = 8 << 20
_MAX_TOGETHER = 8
"""Batches that are gathered by one call, and of how many bytes: handing over a small one costs more than the copy."""


def make_gather(builder: BatchBuilder, budget: ResidentBudget | None = None) -> GatherPart | None:
    """Return the gather of a loader, or None where it cannot be used. Where all streams are left to the rows, it writes keys.

    Args:
        builder: Whose batches are gathered.
        budget: Of streams that are kept in memory; None decides.
    """
    # Transforms take a window on its way: it is decoded beside the batch, not into it.
    if any(source.transforms is not None for source in builder.sources):
        return None
    budget = ResidentBudget.of_machine() if budget is None else budget
    parts = []
    for source in builder.sources:
        gathered = choose_gathered(source.dataset, source.choices, budget)
        budget = budget.without(gathered)
        parts.append(source_gather(builder, source, gathered))
    return GatherPart(builder, parts)


class GatherPart:
    """Writes what can be gathered of a batch. Thread-safe.

    Args:
        builder: Whose batches are gathered.
        parts: One for each source.
    """

    def __init__(self, builder: BatchBuilder, parts: Sequence[SourceGather]) -> None:
        self._builder = builder
        self._parts = tuple(parts)
        self._window_bytes = max((part.window_bytes for part in parts), default=0)
        self._is_whole = not any(part.rest or part.absent for part in parts)
        self._written = frozenset.intersection(*(part.written for part in parts)) if parts else frozenset()
        self._splits: dict[int, list[Int64Array]] = {}
        self._number_of: dict[int, Int64Array] = {}

    @property
    def is_whole(self) -> bool:
        """Whether nothing of a batch is left to others."""
        return self._is_whole

    def figures(self) -> dict[str, int]:
        """Return the bytes of rows kept in memory: now, and once every episode was met."""
        return {
            "resident_bytes": sum(part.table.resident_bytes for part in self._parts),
            "most_resident_bytes": sum(part.gathered.resident_bytes for part in self._parts),
        }

    def splits(self, num_rows: int) -> list[Int64Array]:
        """Return the rows of each unit of a batch that is worth a thread of its own."""
        found = self._splits.get(num_rows)
        if found is None:
            num_units = max(1, min(num_rows, num_rows * self._window_bytes // _UNIT_BYTES))
            found = self._splits[num_rows] = np.array_split(np.arange(num_rows, dtype=np.int64), num_units)
        return found

    def rest(self, source: int) -> tuple[StreamChoice, ...]:
        """Return the streams of a source that others must write; this writes all else, and the keys."""
        return self._parts[source].rest

    def run_all(self, job: Job) -> bool:
        """Write all rows of a batch and return True, or False where the plain path has to."""
        return self.takes(job) and all(self.run(job, row_G) for row_G in self.splits(job.num_rows))

    def takes(self, job: Job) -> bool:
        """Return whether no row is known to be bad."""
        quarantine = self._builder.quarantine
        if self._builder.on_error == "raise" or not len(quarantine):
            return True
        rows = zip(job.window_id_B.tolist(), job.refs.source_B.tolist(), strict=True)
        return not any(quarantine.holds(window_id, job.train_step, source) for window_id, source in rows)

    def run_quickly(self, job: Job) -> bool:
        """Write a batch that is gathered whole and return True, or False where that would take long.

        It does where addresses are not known yet, or rows are many or bad. The batch is then as good as new.
        """
        splits = self.splits(job.num_rows)
        return self.is_whole and len(splits) == 1 and self.takes(job) and self._run([job], splits[0], may_fill=False)

    def takes_together(self, jobs: Sequence[Job]) -> bool:
        """Return whether `run_together` is for these batches of one size."""
        return self.is_whole and len(self.splits(jobs[0].num_rows)) == 1 and all(map(self.takes, jobs))

    def run_together(self, jobs: Sequence[Job]) -> bool:
        """Write batches of one size and return True, or False where the plain path has to; as `run`."""
        return self._run(jobs, self._numbers(len(jobs) * jobs[0].num_rows), may_fill=True)

    def run(self, job: Job, row_G: Int64Array) -> bool:
        """Write these rows and return True, or False where the plain path has to.

        After False the rows may be half written: whoever builds them writes all of it.
        """
        if not self.is_whole:
            job.slots.open(but=self._written)
        return self._run([job], row_G, may_fill=True)

    def _run(self, jobs: Sequence[Job], row_G: Int64Array, may_fill: bool) -> bool:
        begin = time.perf_counter()
        num_bytes = 0
        try:
            rows = GatheredRows.of(jobs, row_G)
            for part, own_G in zip(self._parts, rows.by_source(len(self._parts)), strict=True):
                if len(own_G) and not gather_rows(part, rows, own_G, may_fill=may_fill):
                    return False
                num_bytes += part.mapped_bytes * len(own_G)
        except Exception:
            return False  # the plain path meets it too, and says what and where
        num_windows = len(row_G) if self.is_whole else 0
        self._builder.stats.gathered(time.perf_counter() - begin, num_windows, num_bytes)
        return True

    def _numbers(self, num_rows: int) -> Int64Array:
        """Return 0 to `num_rows` - 1."""
        found = self._number_of.get(num_rows)
        if found is None:
            found = self._number_of[num_rows] = np.arange(num_rows, dtype=np.int64)
        return found

    def clear(self) -> None:
        """Let go of mappings and decoded rows."""
        for part in self._parts:
            part.table.clear()


class GatherUnit:
    """Some rows of a batch that is gathered whole; built plainly, one after the other, where the gather steps back."""

    has_reads = False
    num_parts = 1

    def __init__(self, builder: BatchBuilder, part: GatherPart, job: Job, row_G: Int64Array) -> None:
        self._builder = builder
        self._part = part
        self._row_G = row_G
        self.jobs = (job,)
        self.row = int(row_G[0])

    def read(self) -> None:
        pass

    def run(self, context: DecodeContext) -> None:
        (job,) = self.jobs
        if not self._part.run(job, self._row_G):
            for b in self._row_G.tolist():
                self._builder.build_row(job, b, context)


class GatherTogether:
    """Small batches gathered by one call: handing over each of them costs more than the copy."""

    has_reads = False
    num_parts = 1
    row = 0

    def __init__(self, builder: BatchBuilder, part: GatherPart, jobs: Sequence[Job]) -> None:
        self._builder = builder
        self._part = part
        self.jobs = jobs

    def read(self) -> None:
        pass

    def run(self, context: DecodeContext) -> None:
        if self._part.run_together(self.jobs):
            return
        for job in self.jobs:
            for b in range(job.num_rows):
                try:
                    self._builder.build_row(job, b, context)
                except Exception as err:
                    job.errors.append((b, err))
                    break  # of the errors of a batch that of the first row counts


class GatherUnits(QueuedUnits):
    """Gathers what can be gathered, and leaves the rest of each row to a unit of its own."""

    def __init__(self, builder: BatchBuilder, part: GatherPart, num_decoders: int = 1, num_readers: int = 1) -> None:
        super().__init__(builder, num_decoders, num_readers)
        self._part = part
        self._num_decoders = num_decoders
        self._videos = [VideoPart(source, part.rest(number)) for number, source in enumerate(builder.sources)]
        if part.is_whole and builder.has_fixed_rows and builder.memory is None:
            self.num_together = max(1, min(_MAX_TOGETHER, _TOGETHER_BYTES // max(builder.batch_bytes, 1)))

    def units_of(self, jobs: Sequence[Job]) -> list[Sequence[Unit]]:
        if len(jobs) > 1 and self._part.takes_together(jobs):
            return [(GatherTogether(self._builder, self._part, jobs),)] * len(jobs)
        return super().units_of(jobs)

    def units(self, job: Job) -> Sequence[Unit]:
        part = self._part
        if not part.takes(job):
            return row_units(self._builder, job, self._times)
        if part.run_quickly(job):
            return ()
        splits = part.splits(job.num_rows)
        if part.is_whole:
            if len(splits) > 1:
                job.slots.open()  # before any thread writes: opening sets masks and numbers back
            return [GatherUnit(self._builder, part, job, row_G) for row_G in splits]
        # At once, so that where rows go on from here they find their keys in place.
        if not all(part.run(job, row_G) for row_G in splits):
            return row_units(self._builder, job, self._times)
        if not all(video.is_off for video in self._videos) and self._builder.devices is None:
            return video_units(self._builder, job, self._videos, self._num_decoders, self._times)
        sources = job.refs.source_B.tolist()
        return [RowUnit(self._builder, job, b, part.rest(source), self._times) for b, source in enumerate(sources)]
