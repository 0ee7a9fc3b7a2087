"""Windows of one dataset: planned, read, decoded and transformed into rows of a batch.

A batch of one dataset is made by one of these, a batch of a mixture by one for each source.
"""

# Shapes: B windows, T steps

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from trajload.align.rows import step_flags, stepwise_rows, window_steps
from trajload.augment.chain import TransformChain
from trajload.collate.pool import TensorPool
from trajload.collate.slots import BatchSlots
from trajload.collate.stream_slots import StreamSlots
from trajload.decode import DecodeContext, plan_reads
from trajload.decode.plan import VideoReads
from trajload.decode.quick_video import QuickVideo
from trajload.errors import TrajloadError, at, locate
from trajload.pipeline.config import StreamChoice, stream_layout
from trajload.pipeline.job import Job, RowWork
from trajload.pipeline.quarantine import substitute_id
from trajload.pipeline.quick_tracks import QuickTracks
from trajload.pipeline.rowplan import RowPlanner
from trajload.pipeline.stats import StageStats
from trajload.pipeline.write import StreamWork, write_stream
from trajload.refs import ByteRange, Track, WindowRef
from trajload.sampling.sampler import Sampler
from trajload.sources.base import Dataset
from trajload.spec import Window
from trajload.types import BoolArray, Int64Array

__all__ = ["SourceRows"]

# Rows on their way through transforms: one for each decoder thread.
_MAX_FREE_ROWS = 16


class SourceRows:
    """Makes rows from the windows of one dataset. Thread-safe.

    Args:
        dataset: Where episodes stand.
        window: The window spec.
        choices: Streams of the batch that the dataset has.
        sampler: Of this dataset's windows alone.
        stats: Counters.
        transforms: Run over each window once it is decoded; None for none.
        name: Value of the batch key `source`; None takes the dataset's name.
        absent: Streams of other sources of a mixture that the dataset lacks: missing in each of its windows.
    """

    def __init__(
        self,
        dataset: Dataset,
        window: Window,
        choices: tuple[StreamChoice, ...],
        sampler: Sampler,
        stats: StageStats,
        transforms: TransformChain | None = None,
        *,
        name: str | None = None,
        absent: tuple[StreamChoice, ...] = (),
    ) -> None:
        self.dataset = dataset
        self.window = window
        self.choices = choices
        self.sampler = sampler
        self.stats = stats
        self.transforms = transforms
        self.name = dataset.name if name is None else name
        self.absent = absent
        self.number = 0
        """In the loader, which sets it."""
        self.skips_reads = False
        """Whether bytes are not read: for measurements, where nothing is decoded either."""
        self.stream_number = {choice.key: i for i, choice in enumerate(choices)}
        self.planner = RowPlanner(dataset, window)
        self.layout = stream_layout((*choices, *absent))
        """Of decoded windows, before transforms."""
        self.text = {c.key: c.spec.dtype for c in (*choices, *absent) if c.spec.is_text}
        self._quick = QuickTracks()
        self._row_pool = TensorPool(max_free=_MAX_FREE_ROWS)

    def clear(self) -> None:
        """Forget memory that is not in use."""
        self._row_pool.clear()
        self._quick.clear()

    # ---- read ----

    def read(
        self,
        window_id: int,
        episode: int,
        start: int,
        train_step: int,
        choices: Sequence[StreamChoice] | None = None,
    ) -> RowWork:
        """Plan the window and fetch its bytes; of some streams only, where `choices` says so."""
        begin = time.perf_counter()
        read_s, num_bytes = 0.0, 0
        name = shard = None
        try:
            steps_T, is_pad_T = stepwise_rows(start, int(self.dataset.num_steps_E[episode]), self.window)
            works = []
            for choice in self.choices if choices is None else choices:
                name = choice.name
                works.append(self._plan_stream(choice, episode, start, (steps_T, is_pad_T)))
            begin_read = time.perf_counter()
            for work in works:
                name, shard = work.choice.name, None if work.track is None else work.track.file
                for where in work.ranges if not self.skips_reads or work.choice.spec.is_text else ():
                    num_bytes += where.size
                    work.blobs.append(self.dataset.store.read(where))
            read_s = time.perf_counter() - begin_read
        except TrajloadError as err:
            known = {"dataset": self.name, "episode": episode, "window_id": window_id, "train_step": train_step}
            locate(err, **known, stream=name, shard=shard, steps=None if name is None else self.steps_of(start))
            raise
        plan_s = time.perf_counter() - begin - read_s
        self.stats.window_read(plan_s, read_s, num_bytes)
        return RowWork(window_id, episode, start, steps_T, is_pad_T, works)

    def _plan_stream(
        self, choice: StreamChoice, episode: int, anchor: int, own: tuple[Int64Array, BoolArray]
    ) -> StreamWork:
        """Plan one stream of the window at `anchor`; `own` as for `RowPlanner.plan`."""
        track, quick = self.track(episode, choice)
        if track is None or track.num_rows == 0:
            return StreamWork(choice, None, None, [], [])
        planned = self.planner.plan(choice, track, episode, anchor, own)
        ranges: list[ByteRange] = []
        if len(planned.rows):
            ranges = plan_reads(track, planned.rows) if quick is None else quick.plan(planned.rows)
        return StreamWork(choice, track, planned, ranges, [], quick)

    def track(self, episode: int, choice: StreamChoice) -> tuple[Track | None, QuickVideo | None]:
        """Return the track of a stream, None where the episode lacks it, and once more as it is kept, if it is video."""
        quick = self._quick.get(episode, choice.key)
        if quick is not None:
            return quick.track, quick
        track = self.dataset.track(episode, choice.name)
        return track, self._quick.put(episode, choice.key, track) if track is not None and track.num_rows else None

    def steps_of(self, anchor: int) -> tuple[int, int]:
        """Return the half-open range of steps that the window at `anchor` spans, for messages."""
        first = anchor + self.window.first_offset
        return first, first + self.window.span

    def fetch(self, where: ByteRange) -> bytes:
        """Return bytes of the dataset's files, counted."""
        if self.skips_reads:
            return b""
        self.stats.count(bytes_read=where.size)
        return self.dataset.store.read(where)

    # ---- decode ----

    def decode(self, work: RowWork, train_step: int, context: DecodeContext, slots: StreamSlots, row: int) -> None:
        """Decode a window that was read into `row` of `slots`."""
        begin = time.perf_counter()
        frames, num_decoded, stream = 0, 0, None
        laps = self.stats.costs.laps()
        try:
            for stream in work.streams:
                delivered = write_stream(slots, row, stream, self.window.pad, self.dataset.store, context)
                through = len(stream.ranges.packets_P4) if isinstance(stream.ranges, VideoReads) else delivered
                frames += delivered
                num_decoded += through
                if laps is not None and stream.track is not None:
                    number, rows = self.stream_number[stream.choice.key], stream.num_rows
                    laps.note(self.number, number, work.episode, rows, through)
        except TrajloadError as err:
            if stream is not None:
                shard = stream.track.file if stream.track else None
                locate(err, stream=stream.choice.name, steps=self.steps_of(work.start), shard=shard)
            key = functools.partial(self.dataset.episode_key, work.episode)
            locate(err, dataset=self.name, episode=key, window_id=work.window_id, train_step=train_step)
            raise
        self.stats.window_decoded(time.perf_counter() - begin, frames, num_decoded)

    # ---- what does not come from streams ----

    def write_keys(self, job: Job, b: int) -> None:
        """Write flags, times and numbers of row `b`, and which streams its source lacks."""
        slots: BatchSlots = job.slots
        episode, start = int(job.episode_B[b]), int(job.start_B[b])
        num_steps = int(self.dataset.num_steps_E[episode])
        steps_T, is_pad_T = stepwise_rows(start, num_steps, self.window)
        slots.is_first[b], slots.is_last[b], slots.is_terminal[b] = step_flags(
            steps_T, is_pad_T, num_steps, int(self.dataset.terminated_E[episode])
        )
        slots.step_index[b] = window_steps(start, self.window)
        slots.timestamp_ns[b] = self.dataset.step_times_ns(episode, steps_T)
        slots.episode_index[b] = episode
        slots.window_id[b] = job.window_id_B[b]
        slots.epoch[b] = job.refs.epoch_B[b]
        slots.source[b] = self.name
        if slots.row_is_pad is not None:
            slots.row_is_pad[b] = job.refs.row_is_pad_B[b]
        for choice in self.absent:
            slots.set_missing(choice.key, b)

    # ---- transforms ----

    def empty_row(self) -> StreamSlots:
        """Return memory for one decoded window on its way through the transforms."""
        row = StreamSlots.empty_row(self.window.num_steps, self.layout, self.text, self._row_pool)
        for choice in self.absent:
            row.set_missing(choice.key, 0)
        return row

    def transform(self, job: Job, b: int, row: StreamSlots) -> None:
        """Run the transforms over a decoded window and write row `b` of the batch.

        Outside the policy for bad windows: a transform that fails is a fault of the run's code, not of the data.
        """
        assert self.transforms is not None
        window_id, episode = int(job.window_id_B[b]), self.dataset.episode_key(int(job.episode_B[b]))
        draws: list[Any] | None = None if job.draws is None else job.draws.setdefault(b, [])
        with at(dataset=self.name, episode=episode, window_id=window_id, train_step=job.train_step):
            self.transforms.write(row, job.slots, b, epoch=int(job.refs.epoch_B[b]), window_id=window_id, draws=draws)

    # ---- substitutes and references ----

    def replace(self, job: Job, b: int, attempt: int) -> None:
        """Put a keyed other window of this source in the place of row `b`."""
        draw = substitute_id(self.sampler.seed, int(job.refs.position_B[b]), attempt, self.sampler.num_windows)
        replaced = self.sampler.eligible_id(draw)
        episode_1, start_1 = self.sampler.table.locate(np.array([replaced], dtype=np.int64))
        job.window_id_B[b], job.episode_B[b], job.start_B[b] = replaced, episode_1[0], start_1[0]

    def window_ref(self, job: Job, b: int) -> WindowRef:
        """Return which source, episode and steps row `b` is."""
        episode, first = int(job.episode_B[b]), int(job.start_B[b]) + self.window.first_offset
        return WindowRef(
            source=self.name,
            episode_index=episode,
            episode_key=self.dataset.episode_key(episode),
            start=first,
            stop=first + self.window.span,
            dilation=self.window.dilation,
            window_id=int(job.window_id_B[b]),
            epoch=int(job.refs.epoch_B[b]),
            position=int(job.refs.position_B[b]),
        )
