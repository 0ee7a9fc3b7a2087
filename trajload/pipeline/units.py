"""The pieces of work that a batch is cut into, each done by one decoder thread.

Whatever the pieces are, the batch equals what `BatchBuilder.build` gives, which knows nothing of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Protocol

from trajload.decode import DecodeContext
from trajload.pipeline.ahead import RefsAhead
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.job import Job, RowWork
from trajload.pipeline.read_times import ReadTimes

__all__ = ["QueuedUnits", "RowUnit", "RowUnits", "Unit", "UnitPlanner", "row_units"]


class Unit(Protocol):
    """A piece of work. `read` runs in a reader thread, `run` in a decoder thread."""

    @property
    def jobs(self) -> Sequence[Job]:
        """The batches it is a part of: one, several that it makes together, or none where it prepares what any may need.

        Only where it is one may `run` raise.
        """
        ...

    @property
    def row(self) -> int:
        """The first row it writes: of several errors in a batch, that of the smallest row is raised."""
        ...

    @property
    def num_parts(self) -> int:
        """How much of `Job.remaining` is done once it has run, of each of `jobs`."""
        ...

    @property
    def has_reads(self) -> bool:
        """Whether `read` does anything: units without go straight to a decoder thread."""
        ...

    def read(self) -> None:
        """Fetch bytes. What fails here is tried again by `run`, whose error is the one that counts."""
        ...

    def run(self, context: DecodeContext) -> None:
        """Write the batch's memory, or raise."""
        ...


class UnitPlanner(Protocol):
    """Cuts batches into units, and says which of them is next. Knows when a unit may run, so that no thread waits in one."""

    @property
    def num_together(self) -> int:
        """How many jobs are best opened by one call; more than 1 where batches are so small that each call is felt."""
        ...

    def open_jobs(self, train_step: int, most: int) -> list[Job]:
        """Return the fresh jobs of some train_steps in a row, `most` at most, with `remaining` set.

        Called by one thread, for `train_step` one after the last job returned.
        """
        ...

    def begin(self, job: Job) -> None:
        """Let the work on an opened job begin."""
        ...

    def look_ahead(self) -> None:
        """Prepare what comes after the jobs that are open. Called by the thread that opens jobs."""
        ...

    def next_read(self) -> Unit | None:
        """Wait for the next unit to be read and return it; None after `stop`."""
        ...

    def was_read(self, unit: Unit) -> None:
        """Note that a unit was read."""
        ...

    def next_run(self) -> Unit | None:
        """Wait for the next unit that can run and return it; None after `stop`."""
        ...

    def stop(self) -> None:
        """Wake all waiting threads and hand out no more work. Idempotent."""
        ...

    def close(self) -> None:
        """Forget what was kept between batches. All threads have ended."""
        ...


class QueuedUnits:
    """Units that wait for nothing: read and run in the order of the batches. Subclasses say what they are."""

    def __init__(self, builder: BatchBuilder, num_decoders: int = 1, num_readers: int = 1) -> None:
        self._builder = builder
        self._refs = RefsAhead(builder)
        # Two conditions of one lock: a thread that is woken for nothing takes Python's lock from those that decode.
        lock = threading.Lock()
        self._readable, self._runnable = threading.Condition(lock), threading.Condition(lock)
        self._to_read: deque[Unit] = deque()
        self._to_run: deque[Unit] = deque()
        # Read-ahead is bounded on its own, so that bytes do not pile up in front of slow decoders.
        self._max_read = max(2 * num_decoders, num_readers, 4)
        self._times = ReadTimes()
        self._is_stopped = False
        self._fresh: deque[Sequence[Unit]] = deque()
        self.num_together = 1

    def units(self, job: Job) -> Sequence[Unit]:
        """Return the work on a fresh job, in the order in which it should begin; none if it was done at once."""
        raise NotImplementedError

    def units_of(self, jobs: Sequence[Job]) -> list[Sequence[Unit]]:
        """Return the work on each of some fresh jobs of consecutive train_steps. What several share stands with each."""
        return [self.units(job) for job in jobs]

    def open_jobs(self, train_step: int, most: int) -> list[Job]:
        jobs: list[Job] = []
        try:
            for step in range(train_step, train_step + max(1, min(most, self.num_together))):
                jobs.append(self._builder.open_job(step, self._refs(step)))
        except Exception:
            if not jobs:
                raise  # else those before it come first, and it fails again
        for job, units in zip(jobs, self.units_of(jobs), strict=True):
            self._fresh.append(units)
            job.remaining = sum(unit.num_parts for unit in units)
        return jobs

    def begin(self, job: Job) -> None:
        units = self._fresh.popleft()
        if not units:
            return
        with self._readable:
            for unit in units:
                if unit.jobs[0] is job:  # else it began with an earlier one
                    (self._to_read if unit.has_reads else self._to_run).append(unit)
            self._notify()

    def look_ahead(self) -> None:
        pass

    def _notify(self) -> None:
        """Wake those for whom there is work. The lock is held."""
        are_quick = self._times.are_quick
        if num := len(self._to_run) + (len(self._to_read) if are_quick else 0):
            self._runnable.notify(num)
        if self._to_read and not are_quick and len(self._to_run) < self._max_read:
            self._readable.notify(len(self._to_read))

    def next_read(self) -> Unit | None:
        with self._readable:
            while not self._is_stopped and not (
                self._to_read and len(self._to_run) < self._max_read and not self._times.are_quick
            ):
                self._readable.wait()
            return None if self._is_stopped else self._to_read.popleft()

    def was_read(self, unit: Unit) -> None:
        with self._runnable:
            self._to_run.append(unit)
            self._notify()

    def next_run(self) -> Unit | None:
        with self._runnable:
            while not self._is_stopped and not self._to_run and not (self._to_read and self._times.are_quick):
                self._readable.notify(len(self._to_read))  # reads may have become slow since the readers fell asleep
                self._runnable.wait()
            if self._is_stopped:
                return None
            unit = (self._to_run or self._to_read).popleft()  # what was not read is read where it is run
            self._notify()
            return unit

    def stop(self) -> None:
        with self._runnable:
            self._is_stopped = True
            self._runnable.notify_all()
            self._readable.notify_all()

    def close(self) -> None:
        self._to_read.clear()
        self._to_run.clear()
        self._fresh.clear()


class RowUnit:
    """One row: all streams and keys, or `choices` only, where the rest of the row is in place before this runs."""

    has_reads = True
    num_parts = 1

    def __init__(
        self,
        builder: BatchBuilder,
        job: Job,
        row: int,
        choices: Sequence[StreamChoice] | None = None,
        times: ReadTimes | None = None,
    ) -> None:
        self._builder = builder
        self.jobs = (job,)
        self.row = row
        self._choices = choices
        self._times = times
        self._work: RowWork | None = None
        self._was_tried = False

    def read(self) -> None:
        begin, self._was_tried = perf_counter(), True
        try:
            self._work = self._builder.read_row(self.jobs[0], self.row, self._choices)
        finally:
            if self._times is not None:
                self._times.note(perf_counter() - begin)

    def run(self, context: DecodeContext) -> None:
        if not self._was_tried and self._times is not None:
            with suppress(Exception):
                self.read()
        # A row that could not be read is repeated from the start here, where the policy for bad windows lives.
        if self._choices is None:
            self._builder.build_row(self.jobs[0], self.row, context, self._work)
        else:
            self._builder.build_part(self.jobs[0], self.row, context, self._choices, self._work)


def row_units(builder: BatchBuilder, job: Job, times: ReadTimes | None = None) -> list[RowUnit]:
    """Return one unit for each row of a fresh job: what works for every stream and order."""
    job.slots.open()
    return [RowUnit(builder, job, b, times=times) for b in range(job.num_rows)]


class RowUnits(QueuedUnits):
    """One unit for each row."""

    def units(self, job: Job) -> Sequence[Unit]:
        return row_units(self._builder, job, self._times)
