"""Rows whose pictures come from video, a few at a time: planned and read together, decoded by one compiled call.

Between two windows a decoder fills the processor's caches with its own tables, and Python is slow until it has its own
back. So a unit takes a few rows, and only what is usual: windows of video without padding whose bytes are as they should
be. Whatever else a row has, and every row with anything unusual, goes through `BatchBuilder.build_part`.
"""

# Shapes: B rows of the batch, T places of one stream in a window

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from trajload.align.rows import stepwise_rows
from trajload.decode import DecodeContext
from trajload.decode.libav_video import LoopSetup
from trajload.decode.plan import VideoReads
from trajload.decode.quick_video import QuickVideo
from trajload.decode.video import fill_repeats
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.job import Job, RowWork
from trajload.pipeline.read_times import ReadTimes
from trajload.pipeline.source_rows import SourceRows
from trajload.refs import Track
from trajload.types import Int64Array, NDArray

__all__ = ["VideoPart", "VideoUnit", "video_units"]

_MOST_ROWS = 8
_UNIT_BYTES = 32 << 20
"""Of the pictures of a unit: beyond, decoding takes so long that nothing else is felt."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """One stream of video of a source."""

    choice: StreamChoice
    is_clocked: bool
    steps_T: Int64Array
    """From the anchor."""
    low: int
    """First step that has to exist, from the anchor, and the last one."""
    high: int

    def rows(self, part: VideoPart, track: Track, episode: int, anchor: int) -> Int64Array | None:
        """Return the rows of the track for the window at `anchor`, None where there is padding."""
        num_steps = int(part.source.dataset.num_steps_E[episode])
        if not self.is_clocked:
            is_inside = anchor + self.low >= 0 and anchor + self.high < num_steps
            return self.steps_T + anchor if is_inside else None
        own = stepwise_rows(anchor, num_steps, part.source.window)
        planned = part.source.planner.plan(self.choice, track, episode, anchor, own)
        return None if planned.is_pad_T.any() else planned.rows


class VideoPart:
    """What is left to do of a source's rows: streams that may be video, and others. Thread-safe.

    Args:
        source: What makes the rows.
        rest: Its streams that have to be written.
    """

    def __init__(self, source: SourceRows, rest: Sequence[StreamChoice]) -> None:
        self.source = source
        self.rest = tuple(rest)
        self.video = tuple(_stream(choice) for choice in rest if _may_be_video(choice))
        taken = {stream.choice.key for stream in self.video}
        self.others = tuple(choice for choice in rest if choice.key not in taken)
        self.is_off = not self.video
        """Whether pictures were met that are not video, or not such as the compiled loop knows."""

    @property
    def window_bytes(self) -> int:
        """Of the pictures of one window."""
        return sum(self.source.layout[stream.choice.key].window_bytes for stream in self.video)


def _may_be_video(choice: StreamChoice) -> bool:
    """Return whether places are filled by one picture each, of which nothing but the pixels is wanted."""
    return choice.spec.is_picture and choice.request.align not in ("linear", "interval") and not choice.request.age


def _stream(choice: StreamChoice) -> _Stream:
    steps_T = choice.places.steps_T
    is_clocked = choice.spec.clock == "clocked"
    return _Stream(choice, is_clocked, steps_T, min(int(steps_T[0]), 0), max(int(steps_T[-1]), 0))


@dataclass(frozen=True, slots=True)
class _Window:
    """One stream of one row, read but not decoded."""

    stream: _Stream
    quick: QuickVideo
    plan: VideoReads
    blob: bytes


@dataclass(frozen=True, slots=True)
class _Row:
    """One row, read but not decoded."""

    row: int
    windows: Sequence[_Window]
    """None of them where anything is unusual."""
    work: RowWork | None
    """Of the part's other streams, or of all where there are no windows; None where they could not be read."""


@dataclass(frozen=True, slots=True)
class _Decoding:
    """One window on its way into the batch."""

    window: _Window
    setup: LoopSetup
    values: NDArray
    """Where it goes, (T, C, H, W)."""
    address: int
    """Of these, and their shape in bytes."""
    shape: tuple[int, ...]

    @property
    def kind(self) -> tuple[int, tuple[int, ...]]:
        """Equal for windows that one call can decode."""
        return id(self.setup), self.shape


class VideoUnit:
    """Some rows, one behind the other: their streams that the gather leaves to others.

    Args:
        builder: Builds rows that are not usual.
        job: The batch, with all else in place.
        rows: At least one.
        parts: One for each source.
        times: Told how long reading took.
    """

    has_reads = True
    num_parts = 1

    def __init__(
        self, builder: BatchBuilder, job: Job, rows: range, parts: Sequence[VideoPart], times: ReadTimes | None = None
    ) -> None:
        self._builder = builder
        self.jobs = (job,)
        self.row = rows.start
        self._rows = rows
        self._parts = parts
        self._times = times
        self._read: list[_Row] | None = None

    # ---- read ----

    def read(self) -> None:
        begin = perf_counter()
        self._read = [self._read_row(b) for b in self._rows]
        if self._times is not None:
            self._times.note((perf_counter() - begin) / len(self._rows))

    def _read_row(self, b: int) -> _Row:
        """Return what could be read of a row; what could not is tried again where it is built, and its error counts."""
        job = self.jobs[0]
        part = self._parts[int(job.refs.source_B[b])]
        windows: Sequence[_Window] = ()
        if not part.is_off and not self._builder.is_blank:
            with suppress(Exception):
                windows = _read_windows(part, int(job.episode_B[b]), int(job.start_B[b]))
        work = None
        if not windows or part.others:
            with suppress(Exception):
                work = self._builder.read_row(job, b, part.others if windows else part.rest)
        return _Row(b, windows, work)

    # ---- decode ----

    def run(self, context: DecodeContext) -> None:
        if self._read is None:
            self.read()
        assert self._read is not None
        job, done = self.jobs[0], self._decoded(context, self._read)
        for read in self._read:
            self.row = read.row  # of several errors in a batch that of the smallest row is raised
            part = self._parts[int(job.refs.source_B[read.row])]
            if read.row not in done:
                work = None if read.windows else read.work
                self._builder.build_part(job, read.row, context, part.rest, work)
            elif part.others:
                self._builder.build_part(job, read.row, context, part.others, read.work)

    def _decoded(self, context: DecodeContext, rows: Sequence[_Row]) -> set[int]:
        """Decode the windows of all rows that have some, and return the rows of which all went well."""
        done: set[int] = set()
        if context.devices is not None:
            return done
        together: list[tuple[_Row, list[_Decoding]]] = []
        for read in rows:
            work = self._prepared(context, read) if read.windows else None
            if work is None:
                continue
            source = self._parts[int(self.jobs[0].refs.source_B[read.row])].source
            laps = source.stats.costs.laps()
            if laps is None:
                together.append((read, work))
                continue
            begin = perf_counter()
            for one in work:
                if not _decode(context, [one]):
                    return done
                choice, plan = one.window.stream.choice, one.window.plan
                episode, number = int(self.jobs[0].episode_B[read.row]), source.stream_number[choice.key]
                laps.note(source.number, number, episode, len(plan.rows), len(plan.packets_P4))
            self._note(read, perf_counter() - begin)
            done.add(read.row)
        # Of one stream after the other: what decodes the next window is the same, and its tables are at hand.
        begin = perf_counter()
        by_stream = itertools.zip_longest(*(work for _, work in together))
        windows = [one for stream in by_stream for one in stream if one is not None]
        if all(_decode(context, list(group)) for _, group in itertools.groupby(windows, lambda one: one.kind)):
            seconds = (perf_counter() - begin) / max(len(together), 1)
            for i, (read, _) in enumerate(together):
                self._note(read, seconds, (len(together) - 1 - i) * seconds)
                done.add(read.row)
        return done

    def _prepared(self, context: DecodeContext, read: _Row) -> list[_Decoding] | None:
        """Return what decodes the row's windows, None where that is not for here."""
        job = self.jobs[0]
        out = []
        for window in read.windows:
            choice = window.stream.choice
            values = job.slots.values[choice.key]
            if not window.quick.is_whole(window.plan, window.blob):
                return None
            setup = window.quick.setup(context, choice.spec, values.shape[3:])
            if setup is None:
                self._parts[int(job.refs.source_B[read.row])].is_off = True
                return None
            address = int(values.__array_interface__["data"][0]) + read.row * values.strides[0]
            shape = (*values.shape[1:4], values.shape[4] * values.itemsize)
            out.append(_Decoding(window, setup, values[read.row], address, shape))
        return out

    def _note(self, read: _Row, seconds: float, ago_s: float = 0.0) -> None:
        """Count a row that was decoded."""
        part = self._parts[int(self.jobs[0].refs.source_B[read.row])]
        plans = [window.plan for window in read.windows]
        frames, num_decoded = sum(len(plan.rows) for plan in plans), sum(len(plan.packets_P4) for plan in plans)
        num_windows = 0 if part.others else 1  # else it counts once those are done
        part.source.stats.window_decoded(seconds, frames, num_decoded, num_windows, ago_s)


def _read_windows(part: VideoPart, episode: int, anchor: int) -> Sequence[_Window]:
    """Plan the windows of a row and fetch their bytes; return none where something is unusual."""
    begin = perf_counter()
    source = part.source
    if source.skips_reads:
        return ()
    planned = []
    for stream in part.video:
        track, quick = source.track(episode, stream.choice)
        if quick is None:
            part.is_off = track is not None and track.num_rows > 0
            return ()
        rows = stream.rows(part, quick.track, episode, anchor)
        plan = None if rows is None else quick.plan(rows)
        if not isinstance(plan, VideoReads) or len(plan) != 1 or len(plan.rows) != len(stream.steps_T):
            return ()
        planned.append((stream, quick, plan))
    begin_read = perf_counter()
    read = source.dataset.store.read
    windows = [_Window(stream, quick, plan, read(plan[0])) for stream, quick, plan in planned]
    num_bytes = sum(len(window.blob) for window in windows)
    source.stats.window_read(begin_read - begin, perf_counter() - begin_read, num_bytes)
    return windows


def _decode(context: DecodeContext, windows: Sequence[_Decoding]) -> bool:
    """Decode windows of one kind and return whether all went well; where not, some may be written."""
    setup, shape, first = windows[0].setup, windows[0].shape, windows[0].window
    if not setup.decoder.is_open:  # the rows are of more kinds of video than a context keeps decoders for
        again = first.quick.setup(context, first.stream.choice.spec, setup.size)
        if again is None:
            return False
        setup = again
    plans = [one.window.plan for one in windows]
    addresses = [np.frombuffer(one.window.blob, np.uint8).__array_interface__["data"][0] for one in windows]
    status, num_done = setup.decode_all(plans, np.array(addresses, np.int64), [one.address for one in windows], shape)
    context.windows_by_engine["libav"] += num_done
    if num_done == len(windows):
        for one in windows:
            if len(one.window.plan.wanted_W3) < shape[0]:
                fill_repeats(one.window.quick.track, one.window.plan, one.window.plan.rows, one.values)
        return True
    failed = windows[num_done].window
    spec = failed.stream.choice.spec
    setup.drop_after(status, context, failed.quick.track.index, spec, setup.size)
    return False


def video_units(
    builder: BatchBuilder, job: Job, parts: Sequence[VideoPart], num_decoders: int, times: ReadTimes | None = None
) -> list[VideoUnit]:
    """Cut a batch into units, one for each decoder thread at least; of single rows where their bytes take long to fetch.

    Those are better fetched by many threads at once than one after the other.
    """
    step = 1
    if times is None or times.are_quick:
        bytes_per_row = max(part.window_bytes for part in parts)
        num = min(_MOST_ROWS, _UNIT_BYTES // max(bytes_per_row, 1), job.num_rows // max(num_decoders, 1))
        step = max(num, 1)
    return [
        VideoUnit(builder, job, range(b, min(b + step, job.num_rows)), parts, times)
        for b in range(0, job.num_rows, step)
    ]
