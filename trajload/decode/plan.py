"""Which bytes of a track's file hold given rows: pure arithmetic on tracks, no I/O."""

# Shapes: N pieces of a file (rows, chunks, packets), R ranges

from __future__ import annotations

import numpy as np

from trajload.errors import ConfigError, DecodeError, ShardCorruptError, WindowError
from trajload.refs import ArrayTrack, ByteRange, ChunkTrack, ImageTrack, TableTrack, TextTrack, Track, VideoTrack
from trajload.types import Int64Array, NDArray

__all__ = [
    "Blobs",
    "VideoReads",
    "check_rows",
    "merge_ranges",
    "plan_reads",
    "plan_video",
]

# Pieces closer than this are read in one go: the audio between the packets of a GOP costs less than a second
# read, locally and even more over a network.
MAX_GAP_BYTES = 64 * 1024


def check_rows(track: Track, rows: Int64Array) -> Int64Array:
    """Return `rows` as int64 (N,), or raise WindowError naming the first one outside [0, num_rows)."""
    rows = np.asarray(rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ConfigError(f"rows have shape {rows.shape} and dtype {rows.dtype}: expected a 1-D integer array.")
    rows = rows.astype(np.int64, copy=False)
    if rows.size:
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= track.num_rows:
            bad = low if low < 0 else high
            raise WindowError(
                f"row {bad} does not exist: the stream has {track.num_rows} rows here, so expected 0 <= row < {track.num_rows}."
            )
    return rows


def plan_reads(track: Track, rows: Int64Array) -> list[ByteRange]:
    """Return the byte ranges that `decode_rows` or `read_text` needs for `rows`, in rising offset.

    Whole groups of pictures for video (so that their checksums can be verified), whole chunks, whole images, the
    rows themselves for raw arrays, the whole member for text, and nothing for tables, which read themselves.
    Ranges less than 64 KiB apart are one range. Same arguments, same ranges.

    Args:
        track: Where the rows stand.
        rows: (N,) int, in any order, may repeat.

    Raises:
        WindowError: A row lies outside [0, track.num_rows).
    """
    if isinstance(track, VideoTrack) and isinstance(rows, np.ndarray) and rows.dtype == np.int64 and rows.ndim == 1:
        # the usual case; rows are checked as they are planned
        return plan_video(track, rows) if rows.size else []
    rows = check_rows(track, rows)
    if rows.size == 0 or isinstance(track, TableTrack):
        return []
    if isinstance(track, VideoTrack):
        return plan_video(track, rows)
    if isinstance(track, ArrayTrack):
        first, last = int(rows.min()), int(rows.max())
        if (last + 1 - first - len(rows)) * track.row_bytes <= MAX_GAP_BYTES:
            # the usual window: one run, perhaps with gaps not worth a second read
            return [ByteRange(track.file, track.offset + first * track.row_bytes, (last + 1 - first) * track.row_bytes)]
        needed = np.unique(rows)
        size = np.full(len(needed), track.row_bytes, dtype=np.int64)
        return merge_ranges(track.file, track.offset + needed * track.row_bytes, size)
    if isinstance(track, ChunkTrack):
        chunks = np.unique(rows // track.rows_per_chunk)
        return merge_ranges(track.file, track.offset_K[chunks], track.size_K[chunks])
    if isinstance(track, ImageTrack):
        needed = np.unique(rows)
        return merge_ranges(track.file, track.offset_N[needed], track.size_N[needed])
    if isinstance(track, TextTrack):
        return [ByteRange(track.file, track.offset, track.size)]
    raise ConfigError(f"track {type(track).__name__} is unknown: expected one of trajload.refs.")


def merge_ranges(file: str, offset_N: Int64Array, size_N: Int64Array) -> list[ByteRange]:
    """Return ranges of `file` that cover all pieces, sorted, joined where less than 64 KiB apart."""
    order = np.argsort(offset_N, kind="stable")
    start_N = offset_N[order]
    # A piece may lie inside an earlier one (several edits of one sample), so ends are made monotonous.
    stop_N = np.maximum.accumulate(start_N + size_N[order])
    cut = np.flatnonzero(start_N[1:] - stop_N[:-1] > MAX_GAP_BYTES)
    first = np.concatenate(([0], cut + 1))
    last = np.concatenate((cut, [len(start_N) - 1]))
    return [ByteRange(file, int(a), int(b - a)) for a, b in zip(start_N[first], stop_N[last], strict=True)]


class VideoReads(list[ByteRange]):
    """The ranges of a video window, and how its frames come out of them: what decoding need not work out again."""

    __slots__ = ("groups_G5", "packets_P4", "ranges_R2", "rows", "segments_S3", "wanted_W3")

    def __init__(self, file: str, rows: Int64Array, arrays: tuple[NDArray, ...]) -> None:
        """Take what `plan_kernel.plan_window` gives after its status."""
        self.ranges_R2, self.groups_G5, self.segments_S3, self.packets_P4, self.wanted_W3 = arrays
        super().__init__(ByteRange(file, start, stop - start) for start, stop in self.ranges_R2.tolist())
        self.rows = rows
        """The rows planned for."""

    @property
    def first_of_frame(self) -> dict[int, int]:
        """Where each frame of the video that is wanted is first asked for."""
        return dict(self.wanted_W3[:, 1:].tolist())


def plan_video(track: VideoTrack, rows: Int64Array) -> VideoReads:
    """Return the reads of a window of a video; `rows` are int64 and not empty.

    Raises:
        WindowError: A row lies outside [0, track.num_rows).
        DecodeError: The video has fewer frames than its track promises, or its packet table makes no sense.
    """
    from trajload.decode import plan_kernel

    index = track.index
    packets = (index.offset_P, index.size_P, index.pts_P, index.dts_P, index.is_keyframe_P)
    table: tuple[NDArray, ...] = (*packets, index.packet_of_frame_F, index.seek_of_frame_F)
    if not all(column.flags.c_contiguous for column in table):
        table = tuple(np.ascontiguousarray(column) for column in table)
    numbers = (track.first_frame, track.num_rows, MAX_GAP_BYTES, index.codec == "h264")

    def plan(rows: Int64Array) -> tuple[int, tuple[NDArray, ...]]:
        status, *arrays = plan_kernel.plan_window(rows, *table, *numbers)
        return status, tuple(arrays)

    status, arrays = plan(np.ascontiguousarray(rows))
    if status == plan_kernel.IS_DISORDERED:
        needed, first = np.unique(rows, return_index=True)
        status, arrays = plan(needed)
        if status == plan_kernel.OK:
            arrays[-1][:, 2] = first[arrays[-1][:, 2]]
    if status == plan_kernel.OK:
        return VideoReads(track.file, rows, arrays)
    check_rows(track, rows)
    if status == plan_kernel.BAD_FRAME:
        frames = rows + track.first_frame
        bad = int(frames[(frames < 0) | (frames >= index.num_frames)][0])
        raise DecodeError(
            f"frame {bad} not decodable: the video has {index.num_frames} frames, but its "
            f"track promises frames [{track.first_frame}, {track.first_frame + track.num_rows}). Run 'trajload doctor'."
        )
    raise DecodeError(
        f"the packet table of the video in {track.file!r} makes no sense: it points at packets outside its "
        f"{len(index.is_keyframe_P)}. The index is damaged; run 'trajload verify'."
    )


class Blobs:
    """The bytes of planned ranges, addressed by file offset. Views, no copies."""

    __slots__ = ("_ranges", "_starts", "_views")

    def __init__(self, ranges: list[ByteRange], blobs: list[bytes]) -> None:
        if len(ranges) != len(blobs):
            raise ConfigError(f"got {len(blobs)} blobs, expected {len(ranges)}: pass the bytes of plan_reads in order.")
        for where, blob in zip(ranges, blobs, strict=True):
            if len(blob) != where.size:
                raise ShardCorruptError(
                    f"bytes [{where.offset}, {where.offset + where.size}) of {where.file!r} are truncated: "
                    f"got {len(blob)} bytes, expected {where.size}. Restore the file; 'trajload verify' lists all damage."
                )
        self._ranges = ranges
        self._views = [memoryview(blob) for blob in blobs]
        self._starts = [r.offset for r in ranges]

    def addresses(self) -> Int64Array:
        """Return where in memory each range stands; good while the blobs live."""
        found = [np.frombuffer(view, dtype=np.uint8).__array_interface__["data"][0] for view in self._views]
        return np.array(found, dtype=np.int64)

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes [offset, offset + size) of the file."""
        for k in range(len(self._starts) - 1, -1, -1):
            if offset >= self._starts[k]:
                start = offset - self._starts[k]
                return self._views[k][start : start + size]
        raise AssertionError(f"offset {offset} was not planned")
