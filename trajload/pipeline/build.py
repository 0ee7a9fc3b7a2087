"""What a batch is made of: rows planned, read and decoded into the batch's own memory.

Run plainly, one row after the other in one thread, this is the oracle (`Loader.batch_at`). What works ahead in
threads (`units`, `prefetch`) calls the same functions.
"""

# Shapes: B windows

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trajload.collate.pool import TensorPool
from trajload.collate.slots import BatchSlots, SlotPlan
from trajload.collate.stream_slots import StreamLayout, StreamSlots, native_dtype_of
from trajload.decode import DecodeContext
from trajload.decode.devices import VideoDevices
from trajload.errors import ConfigError, StageFailedError, TrajloadError, at, described
from trajload.machine import free_memory
from trajload.pipeline.config import OnError, StreamChoice, check_rows
from trajload.pipeline.job import Job, RowWork
from trajload.pipeline.quarantine import MAX_ATTEMPTS, Quarantine
from trajload.pipeline.source_rows import SourceRows
from trajload.pipeline.stats import StageStats
from trajload.refs import WindowRef
from trajload.sampling.mixture import MixtureSampler
from trajload.sampling.sampler import BatchRefs, Sampler

if TYPE_CHECKING:
    from trajload.collate.batch import Batch

__all__ = ["BatchBuilder"]

_MIN_CHECKED_BYTES = 256 << 20
"""Batches of less are made without a look at what memory is free."""
_STEP_BYTES, _ROW_BYTES = 19, 128
"""Of a batch's keys and its plan, about."""
# A steady run has at most one batch free at a time; a few more absorb a consumer that drops several together, and many
# small ones a number of train_steps in the works that goes up and down.
_MAX_FREE_BATCHES, _MAX_FREE_BYTES = 4, 128 << 20


class BatchBuilder:
    """Builds the rows of one rank's batches. Stateless but for the quarantine list; thread-safe.

    Args:
        sources: What the rows come from: one dataset, or those of a mixture, numbered as `BatchRefs.source_B` says.
        sampler: Decides the windows of a train_step.
        rows: This rank's rows of the global batch, without load weights.
        on_error: What a window that cannot be read does.
        quarantine: Windows known to be bad.
        stats: Counters.
        rows_at: Train_step → this rank's rows, where they differ from batch to batch; None for `rows` always.
    """

    def __init__(
        self,
        sources: Sequence[SourceRows],
        sampler: Sampler | MixtureSampler,
        rows: slice,
        on_error: OnError,
        quarantine: Quarantine,
        stats: StageStats,
        rows_at: Callable[[int], slice] | None = None,
    ) -> None:
        self.sources = tuple(sources)
        for number, source in enumerate(self.sources):
            source.number = number
        self.sampler = sampler
        self.rows = rows
        self.has_fixed_rows = rows_at is None
        self._rank_rows_at = rows_at
        self.part: Callable[[slice], slice] | None = None
        """Rows of a rank → the part of them that is built here; None for all. A worker process builds a part."""
        self.on_error = on_error
        self.quarantine = quarantine
        self.stats = stats
        self.pool = TensorPool(max_free=_MAX_FREE_BATCHES, max_free_bytes=_MAX_FREE_BYTES)
        self.memory: Callable[[int], BatchSlots] | None = None
        """Train_step → where its rows are written; None for memory of this process."""
        self.first_row = 0
        """Of the part in the rank's batch, for messages."""
        self.is_blank = False
        """Whether rows get zeros instead of being decoded: for measurements."""
        self.devices: VideoDevices | None = None
        """Who decodes video where not all of it is the CPU's; one for all threads of the process."""
        self.num_steps = self.sources[0].window.num_steps
        self.layout: dict[str, StreamLayout] = {}
        """Of the batch: each picture and signal stream of any source, as it is after transforms."""
        self.text: dict[str, str] = {}
        """dtype of each text stream of any source."""
        for source in self.sources:
            self.layout.update(_delivered(source))
            self.text.update(source.text)
        for key, layout in self.layout.items():
            native_dtype_of(key, layout.dtype)  # refused before anything is read, not with the first batch
        self._slot_plans: dict[int, SlotPlan] = {}

    @property
    def num_rows(self) -> int:
        """Rows of a batch that are built here, without load weights."""
        rows = self.rows if self.part is None else self.part(self.rows)
        return rows.stop - rows.start

    @property
    def batch_bytes(self) -> int:
        """Bytes of one batch's streams; of ragged ones as if each place had one row."""
        return self.window_bytes * self.num_rows

    @property
    def window_bytes(self) -> int:
        """Of one row of a batch."""
        return sum(layout.window_bytes for layout in self.layout.values())

    @property
    def pads_rows(self) -> bool:
        """Whether batches have the key `row_is_pad`: finite runs that pad their last batch."""
        return self.sampler.num_train_steps is not None

    def new_context(self) -> DecodeContext:
        """Return what one thread decodes with."""
        return DecodeContext(devices=self.devices, is_blank=self.is_blank)

    def source_of(self, job: Job, b: int) -> SourceRows:
        """Return what makes row `b`."""
        return self.sources[int(job.refs.source_B[b])]

    def clear(self) -> None:
        """Forget memory that is not in use."""
        self.pool.clear()
        for source in self.sources:
            source.clear()

    # ---- plan ----

    def rank_rows_at(self, train_step: int) -> slice:
        """Return this rank's rows of the global batch of `train_step`."""
        return self.rows if self._rank_rows_at is None else self._rank_rows_at(train_step)

    def rows_at(self, train_step: int) -> slice:
        """Return the rows that are built here."""
        rows = self.rank_rows_at(train_step)
        return rows if self.part is None else self.part(rows)

    def open_job(self, train_step: int, refs: BatchRefs | None = None) -> Job:
        """Decide the windows of `train_step` (`refs`, where they are known) and reserve the batch's memory."""
        shared = None if self.memory is None else self.memory(train_step)
        begin = time.perf_counter()
        if refs is None:
            with at(dataset=" + ".join(s.name for s in self.sources), train_step=train_step):
                refs = self.sampler.refs(train_step, self.rows_at(train_step))
        job = Job(
            train_step,
            refs,
            shared or self.slot_plan(len(refs)).reserve(self.pool),
            refs.window_id_B.copy(),
            refs.episode_B.copy(),
            refs.start_B.copy(),
            remaining=len(refs),
        )
        self.stats.add("plan", time.perf_counter() - begin)
        return job

    def slot_plan(self, num_rows: int) -> SlotPlan:
        """Return what a batch of so many rows consists of, made once."""
        found = self._slot_plans.get(num_rows)
        if found is None:
            found = SlotPlan(num_rows, self.num_steps, self.layout, self.text, row_is_pad=self.pads_rows)
            self._slot_plans[num_rows] = found
        return found

    def check_memory(self, num_rows: int) -> None:
        """Raise ConfigError where a batch of so many rows would not fit in memory: the system would end the process."""
        needed = num_rows * (self.window_bytes + self.num_steps * _STEP_BYTES + _ROW_BYTES)
        if needed < _MIN_CHECKED_BYTES:
            return
        free = free_memory()
        if free is not None and needed > free:
            raise ConfigError(
                f"a batch of {num_rows} windows takes {needed} bytes, and {free} are free here: expected batches that fit "
                "in memory several times. Lower global_batch_size, num_steps or the size of pictures, choose streams=, or "
                "use more ranks; batch_at(train_step, rows=...) makes some rows of a batch."
            )

    def refs_of(self, train_step: int, rows: slice | None) -> BatchRefs | None:
        """Return the windows of some rows of the global batch; None for None, which are those that are built here."""
        if rows is None:
            return None
        check_rows(rows, self.sampler.global_batch_size)
        self.check_memory(rows.stop - rows.start)
        return self.sampler.refs(train_step, rows)

    def build(
        self, train_step: int, context: DecodeContext, *, tell_draws: bool = False, rows: slice | None = None
    ) -> Job:
        """Return the job of `train_step` with every row built, one after the other in this thread."""
        if rows is None:
            self.check_memory(self.num_rows)
        job = self.open_job(train_step, self.refs_of(train_step, rows))
        job.draws = {} if tell_draws else None
        for b in range(job.num_rows):
            self.build_row(job, b, context)
        return job

    # ---- rows ----

    def read_row(self, job: Job, b: int, choices: Sequence[StreamChoice] | None = None) -> RowWork:
        """Plan row `b` and fetch its bytes; of some streams of its source only, where `choices` says so."""
        return self.source_of(job, b).read(
            int(job.window_id_B[b]), int(job.episode_B[b]), int(job.start_B[b]), job.train_step, choices
        )

    def build_part(
        self, job: Job, b: int, context: DecodeContext, choices: Sequence[StreamChoice], work: RowWork | None = None
    ) -> None:
        """Write some streams of row `b`, where the others and the keys are in place. Not for rows with transforms.

        With `on_error="substitute"` a window that fails is built again whole, by the policy for bad windows.
        """
        source = self.source_of(job, b)
        try:
            self._guarded(source, job, b, context, work, job.slots, b, choices)
        except TrajloadError:
            if self.on_error == "raise":
                raise
            self.build_row(job, b, context)

    def build_row(self, job: Job, b: int, context: DecodeContext, work: RowWork | None = None) -> None:
        """Write row `b` of the batch. `work` may be given where the row was read before.

        With `on_error="substitute"` a window that fails is replaced by keyed draws; with `"raise"` the error goes out.
        """
        source = self.source_of(job, b)
        if source.transforms is None:
            self._fill_row(source, job, b, context, work, job.slots, b)
            return
        # Decoded beside the batch, since a transform may change shapes, and a failed one leaves nothing half done.
        row = source.empty_row()
        self._fill_row(source, job, b, context, work, row, 0)
        with self.stats.timed("augment"):
            source.transform(job, b, row)

    def _fill_row(
        self,
        source: SourceRows,
        job: Job,
        b: int,
        context: DecodeContext,
        work: RowWork | None,
        slots: StreamSlots,
        row: int,
    ) -> None:
        """Decode window `b` of the job into `row` of `slots`, and write what does not come from streams."""
        if self.on_error == "raise":
            self._guarded(source, job, b, context, work, slots, row)
            source.write_keys(job, b)
            return
        number = int(job.refs.source_B[b])
        for attempt in range(MAX_ATTEMPTS + 1):
            window_id = int(job.window_id_B[b])
            last: TrajloadError | None = None
            if not self.quarantine.holds(window_id, job.train_step, number):
                try:
                    self._guarded(source, job, b, context, work, slots, row)
                    source.write_keys(job, b)
                    return
                except TrajloadError as err:
                    self.quarantine.add(window_id, job.train_step, err, number)
                    last = err
            if attempt == MAX_ATTEMPTS:
                raise StageFailedError(
                    f"no readable window found for row {self.first_row + b}: got {MAX_ATTEMPTS + 1} failures in a row, the last at window {window_id}. "
                    "Run 'trajload verify' and repair the dataset."
                ) from last
            work = None
            self.stats.count(substituted=1)
            source.replace(job, b, attempt + 1)

    def _guarded(
        self,
        source: SourceRows,
        job: Job,
        b: int,
        context: DecodeContext,
        work: RowWork | None,
        slots: StreamSlots,
        row: int,
        choices: Sequence[StreamChoice] | None = None,
    ) -> None:
        """Read (if need be) and decode row `b`; any failure comes out as a TrajloadError with its location."""
        try:
            if work is None:
                work = self.read_row(job, b, choices)
            source.decode(work, job.train_step, context, slots, row)
        except TrajloadError:
            raise
        except Exception as err:
            with at(
                dataset=source.name,
                episode=int(job.episode_B[b]),
                window_id=int(job.window_id_B[b]),
                train_step=job.train_step,
            ):
                raise StageFailedError(f"building a window failed with {described(err)}") from err

    # ---- finish ----

    def finish(self, job: Job) -> Batch:
        """Return the finished batch. Every row must have been built."""
        begin = time.perf_counter()
        batch = job.slots.finish(job.train_step, lambda: self.window_refs(job))
        self.stats.add("collate", time.perf_counter() - begin)
        return batch

    def window_refs(self, job: Job) -> tuple[WindowRef, ...]:
        """Return what each row of a finished batch is."""
        return tuple(self.source_of(job, b).window_ref(job, b) for b in range(job.num_rows))


def _delivered(source: SourceRows) -> Mapping[str, StreamLayout]:
    """Return the layout of a source's streams after its transforms."""
    out = dict(source.layout)
    for key, (shape, dtype) in ({} if source.transforms is None else source.transforms.layout).items():
        out[key] = replace(out[key], row_shape=shape, dtype=dtype)
    return out
