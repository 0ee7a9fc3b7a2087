"""What the windows of one block take: rows of each picture stream, masks, and what does not come from streams.

Planned for all windows of a block at once, so that a window costs a look-up when its turn comes. A window that cannot be
planned, and a block that cannot be decoded, are left to the plain way of making a row, which says why.
"""

# Shapes: W windows of a block, T places of one stream or steps of a window, U rows decoded

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from trajload.align.rows import rows_to_zero, step_flags, stepwise_rows, window_offsets, window_steps
from trajload.decode import DecodeContext, decode_rows, plan_reads, row_shape
from trajload.decode.plan import VideoReads
from trajload.errors import at
from trajload.pipeline.arena import aligned
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.source_rows import SourceRows
from trajload.pipeline.stats_costs import Laps
from trajload.refs import ByteRange, Track, VideoTrack
from trajload.types import BoolArray, Int64Array, NDArray

__all__ = ["BlockPiece", "BlockPlan", "BlockStream", "WindowKeys", "plan_block"]

_MAX_FLAGS = 1 << 16
_MIN_PIECE_ROWS = 8
_MIN_PIECE_PIXELS = 600_000
"""Of the stored pictures. Beginning a piece anew costs a fraction of a millisecond: with pieces of 8 pictures of 64x64
interleaved order had two thirds of its windows/s, while at 240x320 nothing was lost."""


@dataclass(slots=True)
class BlockStream:
    """One picture stream of a block."""

    choice: StreamChoice
    track: Track | None
    """None: the episode lacks the stream."""
    rows_U: Int64Array
    """Of the track, rising, each once."""
    place_WT: Int64Array
    """Where in `rows_U` each place of each window stands."""
    is_pad_WT: BoolArray
    is_zero_WT: BoolArray
    has_pad_W: BoolArray
    has_zero_W: BoolArray
    age_ns_WT: Int64Array | None
    row_bytes: int = 0
    """Of one decoded row."""
    offset: int = 0
    """Of its rows in the block's memory."""
    ranges: list[ByteRange] = field(default_factory=list)
    blobs: list[bytes] | None = None
    """Of each of `ranges`, from reading until the block is decoded."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockPiece:
    """Rows of one stream of a block that are decoded in one go, by one thread."""

    stream: BlockStream
    first: int
    """Place of its first row in `stream.rows_U`."""
    rows_U: Int64Array
    ranges: list[ByteRange]
    """What it needs of the stream's ranges."""
    num_decoded: int
    """Frames that go through the decoder, with those before the first one wanted."""

    def blobs(self) -> list[Any]:
        """Return the bytes of `ranges`, cut from what was read for the stream."""
        stream = self.stream
        assert stream.blobs is not None
        if self.ranges is stream.ranges:
            return list(stream.blobs)
        out = []
        for where in self.ranges:
            k = bisect_right(stream.ranges, where.offset, key=lambda r: r.offset) - 1
            start = where.offset - stream.ranges[k].offset
            out.append(memoryview(stream.blobs[k])[start : start + where.size])
        return out


@dataclass(frozen=True, slots=True, eq=False)
class WindowKeys:
    """What a batch says of windows beside their streams, one row each."""

    step_index_WT: Int64Array
    timestamp_ns_WT: Int64Array
    is_first_WT: BoolArray
    is_last_WT: BoolArray
    is_terminal_WT: BoolArray


@dataclass(slots=True)
class BlockPlan:
    """All of a block but its pictures."""

    source: SourceRows
    episode: int
    first_window_id: int
    is_bad_W: list[bool]
    """Windows that could not be planned."""
    streams: list[BlockStream]
    anchor_W: Int64Array
    num_bytes: int = 0
    """Memory of the decoded rows of all streams."""
    pieces: list[BlockPiece] = field(default_factory=list)
    """All that is to be decoded. None needs another one, or frames of it."""
    _keys: WindowKeys | None = None

    @property
    def keys(self) -> WindowKeys:
        """What a batch says of each window: worked out when it is first asked for, since a gather mostly writes it."""
        found = self._keys
        if found is None:
            found = self._keys = _keys(self.source, self.episode, self.anchor_W)
        return found

    def read(self) -> None:
        """Fetch the bytes of all streams."""
        for stream in self.streams:
            if stream.track is not None and stream.blobs is None:
                with self.source.stats.timed("read"), at(shard=stream.track.file):
                    stream.blobs = [self.source.fetch(where) for where in stream.ranges]

    def drop_bytes(self) -> None:
        """Forget what `read` fetched."""
        for stream in self.streams:
            stream.blobs = None

    def decode(self, memory: NDArray, context: DecodeContext, pieces: Sequence[BlockPiece]) -> int:
        """Decode pieces into `memory`, `num_bytes` of uint8 for all of them; return how many frames the decoder made."""
        source = self.source
        laps = Laps(source.stats.costs)
        for piece in pieces:
            stream = piece.stream
            assert stream.track is not None
            shape, dtype = row_shape(stream.choice.spec, stream.choice.request)
            start = stream.offset + piece.first * stream.row_bytes
            out = memory[start : start + len(piece.rows_U) * stream.row_bytes]
            decode_rows(
                stream.track,
                piece.rows_U,
                piece.blobs(),
                out.view(dtype).reshape(len(piece.rows_U), *shape),
                spec=stream.choice.spec,
                request=stream.choice.request,
                store=source.dataset.store,
                context=context,
                plan=piece.ranges,
            )
            number = source.stream_number[stream.choice.key]
            laps.note(source.number, number, self.episode, len(piece.rows_U), piece.num_decoded)
        return sum(piece.num_decoded for piece in pieces)


def plan_block(
    source: SourceRows,
    choices: tuple[StreamChoice, ...],
    episode: int,
    first_window_id: int,
    num_windows: int,
    *,
    is_cut: bool = True,
) -> BlockPlan:
    """Plan windows [first_window_id, first_window_id + num_windows) of one episode.

    With `is_cut` videos are decoded in pieces that begin at keyframes; else each stream is one.

    Raises:
        TrajloadError: Nothing can be said of any window. What is wrong with some only is left to them (`is_bad_W`).
    """
    ids_W = np.arange(first_window_id, first_window_id + num_windows, dtype=np.int64)
    _, anchor_W = source.sampler.table.locate(ids_W)
    is_bad_W = np.zeros(num_windows, dtype=np.bool_)
    num_steps = int(source.dataset.num_steps_E[episode])
    own = functools.cache(lambda: stepwise_rows(anchor_W, num_steps, source.window))  # once, where any stream needs it
    streams = [_plan_stream(source, choice, episode, anchor_W, own, is_bad_W) for choice in choices]
    plan = BlockPlan(source, episode, first_window_id, is_bad_W.tolist(), streams, anchor_W)
    for stream in streams:
        if stream.track is not None:
            shape, dtype = row_shape(stream.choice.spec, stream.choice.request)
            stream.row_bytes = math.prod(shape) * dtype.itemsize
            stream.ranges = plan_reads(stream.track, stream.rows_U) if len(stream.rows_U) else []
            stream.offset = plan.num_bytes
            plan.num_bytes += aligned(len(stream.rows_U) * stream.row_bytes)
            plan.pieces += _pieces(stream, is_cut)
    return plan


def _pieces(stream: BlockStream, is_cut: bool) -> list[BlockPiece]:
    """Cut a stream's rows where decoding may begin anew without lead-in, into pieces that are worth it."""
    rows_U, track = stream.rows_U, stream.track
    if not len(rows_U):
        return []
    whole = BlockPiece(stream, 0, rows_U, stream.ranges, _num_decoded(stream.ranges, rows_U))
    if not is_cut or not isinstance(track, VideoTrack):
        return [whole]
    min_rows = max(_MIN_PIECE_ROWS, _MIN_PIECE_PIXELS // (track.index.width * track.index.height))
    if len(rows_U) < 2 * min_rows:
        return [whole]
    seek_U = track.index.seek_of_frame_F[rows_U + track.first_frame]
    bounds = [0]
    for at_row in (np.flatnonzero(seek_U[1:] != seek_U[:-1]) + 1).tolist():
        if min(at_row - bounds[-1], len(rows_U) - at_row) >= min_rows:
            bounds.append(at_row)
    if len(bounds) == 1:
        return [whole]
    pieces = []
    for start, stop in pairwise([*bounds, len(rows_U)]):
        part_U = np.ascontiguousarray(rows_U[start:stop])
        ranges = plan_reads(track, part_U)
        pieces.append(BlockPiece(stream, start, part_U, ranges, _num_decoded(ranges, part_U)))
    # Where groups of pictures refer to each other, pieces would decode the same frames.
    return pieces if sum(piece.num_decoded for piece in pieces) <= whole.num_decoded else [whole]


def _num_decoded(ranges: list[ByteRange], rows_U: Int64Array) -> int:
    return len(ranges.packets_P4) if isinstance(ranges, VideoReads) else len(rows_U)


def _plan_stream(
    source: SourceRows,
    choice: StreamChoice,
    episode: int,
    anchor_W: Int64Array,
    own: Callable[[], tuple[Int64Array, BoolArray]],
    is_bad_W: BoolArray,
) -> BlockStream:
    """Plan one stream, and mark the windows that cannot be. `own` gives the windows' own steps, as for `RowPlanner.plan`."""
    num_windows, num_places = len(anchor_W), choice.places.num_places
    track = source.dataset.track(episode, choice.name)
    if track is not None and choice.spec.clock == "stepwise" and not choice.request.age:
        found = _plan_steps(source, choice, episode, anchor_W, track)
        if found is not None:
            return found
    rows_WT = np.zeros((num_windows, num_places), dtype=np.int64)
    is_pad_WT = np.zeros((num_windows, num_places), dtype=np.bool_)
    is_outside_WT = np.zeros_like(is_pad_WT)
    age_WT = np.zeros_like(rows_WT) if choice.request.age else None
    if track is None or track.num_rows == 0:
        none_W = np.zeros(num_windows, dtype=np.bool_)
        return BlockStream(choice, None, rows_WT[0, :0], rows_WT, is_pad_WT, is_outside_WT, none_W, none_W, age_WT)
    is_here_W = np.ones(num_windows, dtype=np.bool_)
    if choice.spec.clock == "stepwise":
        rows_WT, is_outside_WT = own()
        if not choice.places.is_own:
            num_steps = int(source.dataset.num_steps_E[episode])
            rows_WT, is_outside_WT = stepwise_rows(anchor_W, num_steps, source.window, choice.places.steps_T)
        is_pad_WT = is_outside_WT
        is_here_W = rows_WT[:, -1] < track.num_rows
    else:
        steps_WT, is_beyond_WT = own()
        for w, anchor in enumerate(anchor_W.tolist()):
            try:
                planned = source.planner.plan(choice, track, episode, anchor, (steps_WT[w], is_beyond_WT[w]))
            except Exception:
                is_here_W[w] = False
                continue
            rows_WT[w], is_pad_WT[w], is_outside_WT[w] = planned.rows, planned.is_pad_T, planned.is_outside_T
            if age_WT is not None and planned.clocked is not None:
                age_WT[w] = planned.clocked.age_ns_T
    if is_here_W.all():
        rows_U, place_WT = _distinct(rows_WT)
    else:
        is_bad_W |= ~is_here_W
        place_WT = np.zeros((num_windows, num_places), dtype=np.int64)
        rows_U, place_WT[is_here_W] = _distinct(rows_WT[is_here_W])
    has_pad_W: BoolArray = np.asarray(is_pad_WT.any(axis=1))
    is_zero_WT, has_zero_W = is_pad_WT, has_pad_W
    if has_pad_W.any():
        is_zero_WT = rows_to_zero(is_outside_WT, is_pad_WT, source.window.pad)
        has_zero_W = np.asarray(is_zero_WT.any(axis=1))
    return BlockStream(choice, track, rows_U, place_WT, is_pad_WT, is_zero_WT, has_pad_W, has_zero_W, age_WT)


def _plan_steps(
    source: SourceRows, choice: StreamChoice, episode: int, anchor_W: Int64Array, track: Track
) -> BlockStream | None:
    """Plan a stream that has a row for each step, as most have, or return None where it is not one of these."""
    from trajload.align.block_kernel import block_rows

    num_steps, places = int(source.dataset.num_steps_E[episode]), choice.places
    if track.num_rows < num_steps:
        return None
    offset_T = window_offsets(source.window) if places.is_own else places.steps_T
    rows_U, place_WT, is_pad_WT, has_pad_W = block_rows(anchor_W, offset_T, num_steps)
    if not len(rows_U):
        return None
    if source.window.pad == "zero":
        is_zero_WT, has_zero_W = is_pad_WT, has_pad_W
    else:
        is_zero_WT, has_zero_W = np.zeros_like(is_pad_WT), np.zeros_like(has_pad_W)
    return BlockStream(choice, track, rows_U, place_WT, is_pad_WT, is_zero_WT, has_pad_W, has_zero_W, None)


def _distinct(rows_WT: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the rows, rising, each once, and where among them each of `rows_WT` stands: `np.unique`, without sorting.

    Rows of a block lie close together, so a flag for each row between the first and the last is cheap.
    """
    if not rows_WT.size:
        return np.zeros(0, dtype=np.int64), rows_WT
    first = int(rows_WT.min())
    size = int(rows_WT.max()) - first + 1
    if size > _MAX_FLAGS:
        rows_U, place = np.unique(rows_WT, return_inverse=True)
        return rows_U, place.reshape(rows_WT.shape)
    from_first_WT = rows_WT - first
    is_taken_N = np.zeros(size, dtype=np.bool_)
    is_taken_N[from_first_WT] = True
    rows_U = np.flatnonzero(is_taken_N)
    if len(rows_U) == size:  # a run without gaps
        return rows_U + first, from_first_WT
    return rows_U + first, (np.cumsum(is_taken_N) - 1)[from_first_WT]


def _keys(source: SourceRows, episode: int, anchor_W: Int64Array) -> WindowKeys:
    dataset = source.dataset
    num_steps = int(dataset.num_steps_E[episode])
    steps_WT, is_pad_WT = stepwise_rows(anchor_W, num_steps, source.window)
    flags = step_flags(steps_WT, is_pad_WT, num_steps, int(dataset.terminated_E[episode]))
    times = dataset.step_times_ns(episode, steps_WT.reshape(-1)).reshape(steps_WT.shape)
    return WindowKeys(window_steps(anchor_W, source.window), times, *flags)
