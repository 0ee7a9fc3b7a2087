"""What a batch is made of: rows planned, read and decoded into the batch's own memory.

Run plainly, one row after the other in one thread, this is the oracle (`Loader.batch_at`). The prefetcher calls
the same three functions from threads.
"""

# Shapes: B windows, T steps

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trajload.align.rows import step_flags, stepwise_rows, window_steps
from trajload.augment.chain import TransformChain
from trajload.collate.batch import Batch
from trajload.collate.pool import TensorPool
from trajload.collate.slots import BatchSlots
from trajload.collate.stream_slots import StreamSlots
from trajload.decode import DecodeContext, plan_reads
from trajload.errors import StageFailedError, TrajloadError, at
from trajload.pipeline.config import OnError, StreamChoice, stream_layout
from trajload.pipeline.quarantine import MAX_ATTEMPTS, Quarantine, substitute_id
from trajload.pipeline.rowplan import RowPlanner
from trajload.pipeline.stats import StageStats
from trajload.pipeline.write import StreamWork, write_stream
from trajload.refs import ByteRange, WindowRef
from trajload.sampling.sampler import BatchRefs, Sampler
from trajload.sources.base import Dataset
from trajload.spec import Window
from trajload.types import BoolArray, Int64Array

__all__ = ["BatchBuilder", "Job", "RowWork"]

# A steady run has at most one batch free at a time; a few more absorb a consumer that drops several together.
_MAX_FREE_BATCHES = 4
# Rows on their way through transforms: one for each decoder thread.
_MAX_FREE_ROWS = 16


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
    errors: list[tuple[int, BaseException]] = field(default_factory=list)
    draws: dict[int, list[Any]] | None = None
    """Where asked for: what the transforms drew for each row."""

    @property
    def num_rows(self) -> int:
        return len(self.window_id_B)


@dataclass(frozen=True, slots=True)
class RowWork:
    """One row, read but not decoded."""

    window_id: int
    episode: int
    start: int
    """Its anchor: the first step, without history."""
    steps_T: Int64Array
    """The window's own steps, clamped into the episode."""
    is_pad_T: BoolArray
    streams: list[StreamWork]


class BatchBuilder:
    """Builds the rows of one rank's batches. Stateless but for the quarantine list; thread-safe.

    Args:
        dataset: Where episodes stand.
        window: The window spec.
        choices: Streams of the batch.
        sampler: Decides the windows of a train_step.
        rows: This rank's rows of the global batch.
        on_error: What a window that cannot be read does.
        quarantine: Windows known to be bad.
        stats: Counters.
        transforms: Run over each window once it is decoded; None for none.
    """

    def __init__(
        self,
        dataset: Dataset,
        window: Window,
        choices: tuple[StreamChoice, ...],
        sampler: Sampler,
        rows: slice,
        on_error: OnError,
        quarantine: Quarantine,
        stats: StageStats,
        transforms: TransformChain | None = None,
    ) -> None:
        self.dataset = dataset
        self.window = window
        self.choices = choices
        self.sampler = sampler
        self.rows = rows
        self.on_error = on_error
        self.quarantine = quarantine
        self.stats = stats
        self.pool = TensorPool(max_free=_MAX_FREE_BATCHES)
        self.planner = RowPlanner(dataset, window)
        self.transforms = transforms
        self._row_pool = TensorPool(max_free=_MAX_FREE_ROWS)
        self._decoded_layout = stream_layout(choices)
        self._layout = dict(self._decoded_layout)
        for name, (shape, dtype) in ({} if transforms is None else transforms.layout).items():
            self._layout[name] = replace(self._layout[name], row_shape=shape, dtype=dtype)
        self._text = {c.name: c.spec.dtype for c in choices if c.spec.is_text}

    @property
    def batch_bytes(self) -> int:
        """Bytes of one batch's streams; of ragged ones as if each place had one row."""
        return sum(layout.window_bytes for layout in self._layout.values()) * (self.rows.stop - self.rows.start)

    def clear(self) -> None:
        """Forget memory that is not in use."""
        self.pool.clear()
        self._row_pool.clear()

    # ---- plan ----

    def open_job(self, train_step: int) -> Job:
        """Decide the windows of `train_step` and allocate the batch's memory."""
        with self.stats.timed("plan"), at(dataset=self.dataset.name, train_step=train_step):
            refs = self.sampler.refs(train_step, self.rows)
            num_rows = len(refs.window_id_B)
            slots = BatchSlots.allocate(
                num_rows,
                self.window.num_steps,
                self._layout,
                self._text,
                row_is_pad=self.sampler.num_train_steps is not None,
                pool=self.pool,
            )
            return Job(
                train_step,
                refs,
                slots,
                refs.window_id_B.copy(),
                refs.episode_B.copy(),
                refs.start_B.copy(),
                remaining=num_rows,
            )

    def build(self, train_step: int, context: DecodeContext, *, tell_draws: bool = False) -> Job:
        """Return the job of `train_step` with every row built, one after the other in this thread."""
        job = self.open_job(train_step)
        job.draws = {} if tell_draws else None
        for b in range(job.num_rows):
            self.build_row(job, b, context)
        return job

    # ---- read ----

    def read_row(self, job: Job, b: int) -> RowWork:
        """Plan row `b` and fetch its bytes."""
        return self._read_window(int(job.window_id_B[b]), int(job.episode_B[b]), int(job.start_B[b]), job.train_step)

    def _read_window(self, window_id: int, episode: int, start: int, train_step: int) -> RowWork:
        num_steps = int(self.dataset.num_steps_E[episode])
        with at(dataset=self.dataset.name, episode=episode, window_id=window_id, train_step=train_step):
            with self.stats.timed("plan"):
                steps_T, is_pad_T = stepwise_rows(start, num_steps, self.window)
            works = []
            for choice in self.choices:
                with at(stream=choice.name, steps=self._steps(start), shard=None):
                    works.append(self._read_stream(choice, episode, start, (steps_T, is_pad_T)))
            return RowWork(window_id, episode, start, steps_T, is_pad_T, works)

    def _read_stream(
        self, choice: StreamChoice, episode: int, anchor: int, own: tuple[Int64Array, BoolArray]
    ) -> StreamWork:
        with self.stats.timed("plan"):
            track = self.dataset.track(episode, choice.name)
            if track is None or track.num_rows == 0:
                return StreamWork(choice, None, None, [], [])
            planned = self.planner.plan(choice, track, episode, anchor, own)
            ranges = plan_reads(track, planned.rows) if len(planned.rows) else []
        with self.stats.timed("read"), at(shard=track.file):
            blobs = [self._read(where) for where in ranges]
        return StreamWork(choice, track, planned, ranges, blobs)

    def _steps(self, anchor: int) -> tuple[int, int]:
        first = anchor + self.window.first_offset
        return first, first + self.window.span

    def _read(self, where: ByteRange) -> bytes:
        self.stats.count(bytes_read=where.size)
        return self.dataset.store.read(where)

    # ---- decode ----

    def build_row(self, job: Job, b: int, context: DecodeContext, work: RowWork | None = None) -> None:
        """Write row `b` of the batch. `work` may be given where the row was read before.

        With `on_error="substitute"` a window that fails is replaced by keyed draws; with `"raise"` the error goes out.
        """
        if self.transforms is None:
            self._fill_row(job, b, context, work, job.slots, b)
            return
        # Decoded beside the batch, since a transform may change shapes, and a failed one leaves nothing half done.
        row = StreamSlots.empty_row(self.window.num_steps, self._decoded_layout, self._text, self._row_pool)
        self._fill_row(job, b, context, work, row, 0)
        with self.stats.timed("augment"):
            self._transform(self.transforms, job, b, row)

    def _transform(self, transforms: TransformChain, job: Job, b: int, row: StreamSlots) -> None:
        """Run the transforms over the decoded row and write the batch's.

        Outside the policy for bad windows: a transform that fails is a fault of the run's code, not of the data.
        """
        window_id, episode = int(job.window_id_B[b]), self.dataset.episode_key(int(job.episode_B[b]))
        draws: list[Any] | None = None if job.draws is None else job.draws.setdefault(b, [])
        with at(dataset=self.dataset.name, episode=episode, window_id=window_id, train_step=job.train_step):
            transforms.write(row, job.slots, b, epoch=int(job.refs.epoch_B[b]), window_id=window_id, draws=draws)

    def _fill_row(
        self, job: Job, b: int, context: DecodeContext, work: RowWork | None, slots: StreamSlots, row: int
    ) -> None:
        """Decode window `b` of the job into `row` of `slots`, and write what does not come from streams."""
        if self.on_error == "raise":
            self._write_row(job, b, self._guarded(job, b, context, work, slots, row))
            return
        for attempt in range(MAX_ATTEMPTS + 1):
            window_id = int(job.window_id_B[b])
            if not self.quarantine.holds(window_id, job.train_step):
                try:
                    self._write_row(job, b, self._guarded(job, b, context, work, slots, row))
                    return
                except TrajloadError as err:
                    self.quarantine.add(window_id, job.train_step, err)
                    last: TrajloadError | None = err
            else:
                last = None
            if attempt == MAX_ATTEMPTS:
                raise StageFailedError(
                    f"no readable window found for row {b}: got {MAX_ATTEMPTS + 1} failures in a row, the last at window {window_id}. "
                    "Run 'trajload verify' and repair the dataset."
                ) from last
            work = None
            self.stats.count(substituted=1)
            draw = substitute_id(self.sampler.seed, int(job.refs.position_B[b]), attempt + 1, self.sampler.num_windows)
            replaced = self.sampler.eligible_id(draw)
            episode_1, start_1 = self.sampler.table.locate(np.array([replaced], dtype=np.int64))
            job.window_id_B[b], job.episode_B[b], job.start_B[b] = replaced, episode_1[0], start_1[0]

    def _guarded(
        self, job: Job, b: int, context: DecodeContext, work: RowWork | None, slots: StreamSlots, row: int
    ) -> RowWork:
        """Read (if need be) and decode row `b`; any failure comes out as a TrajloadError with its location."""
        try:
            if work is None:
                work = self.read_row(job, b)
            with self.stats.timed("decode"):
                self._decode(job, work, context, slots, row)
            return work
        except TrajloadError:
            raise
        except Exception as err:
            with at(
                dataset=self.dataset.name,
                episode=int(job.episode_B[b]),
                window_id=int(job.window_id_B[b]),
                train_step=job.train_step,
            ):
                raise StageFailedError(f"building a window failed with {type(err).__name__}: {err}") from err

    def _decode(self, job: Job, work: RowWork, context: DecodeContext, slots: StreamSlots, row: int) -> None:
        frames = 0
        with at(
            dataset=self.dataset.name,
            episode=self.dataset.episode_key(work.episode),
            window_id=work.window_id,
            train_step=job.train_step,
        ):
            for stream in work.streams:
                name = stream.choice.name
                with at(stream=name, steps=self._steps(work.start), shard=stream.track.file if stream.track else None):
                    frames += write_stream(slots, row, stream, self.window.pad, self.dataset.store, context)
        self.stats.count(frames=frames, windows=1)

    def _write_row(self, job: Job, b: int, work: RowWork) -> None:
        """Write the keys that do not come from a stream."""
        slots, episode = job.slots, work.episode
        slots.is_first[b], slots.is_last[b], slots.is_terminal[b] = step_flags(
            work.steps_T, work.is_pad_T, int(self.dataset.num_steps_E[episode]), int(self.dataset.terminated_E[episode])
        )
        slots.step_index[b] = window_steps(work.start, self.window)
        slots.timestamp_ns[b] = self.dataset.step_times_ns(episode, work.steps_T)
        slots.episode_index[b] = episode
        slots.window_id[b] = work.window_id
        slots.epoch[b] = job.refs.epoch_B[b]
        slots.source[b] = self.dataset.name
        if slots.row_is_pad is not None:
            slots.row_is_pad[b] = job.refs.row_is_pad_B[b]

    # ---- finish ----

    def finish(self, job: Job) -> Batch:
        """Return the finished batch. Every row must have been built."""
        with self.stats.timed("collate"):
            return job.slots.finish(job.train_step, lambda: self._window_refs(job))

    def _window_refs(self, job: Job) -> tuple[WindowRef, ...]:
        return tuple(
            WindowRef(
                source=self.dataset.name,
                episode_index=int(job.episode_B[b]),
                episode_key=self.dataset.episode_key(int(job.episode_B[b])),
                start=int(job.start_B[b]) + self.window.first_offset,
                stop=int(job.start_B[b]) + self.window.first_offset + self.window.span,
                dilation=self.window.dilation,
                window_id=int(job.window_id_B[b]),
                epoch=int(job.refs.epoch_B[b]),
                position=int(job.refs.position_B[b]),
            )
            for b in range(job.num_rows)
        )
