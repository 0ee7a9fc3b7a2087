"""Which bytes of a track's file hold given rows: pure arithmetic on tracks, no I/O."""

# Shapes: N pieces of a file (rows, chunks, packets), R ranges

from __future__ import annotations

import numpy as np

from trajload.errors import ConfigError, DecodeError, ShardCorruptError, WindowError
from trajload.refs import ArrayTrack, ByteRange, ChunkTrack, ImageTrack, TableTrack, TextTrack, Track, VideoTrack
from trajload.types import BoolArray, Int64Array

__all__ = [
    "Blobs",
    "VideoReads",
    "check_rows",
    "merge_ranges",
    "plan_reads",
    "plan_video",
    "reorder_depth",
    "video_segments",
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


def video_segments(track: VideoTrack, frames_F: Int64Array) -> list[tuple[int, int]]:
    """Return half-open packet runs, each starting on a keyframe, that must be fed to get `frames_F` out.

    Runs that touch are joined: going on costs nothing, starting again costs a flush.
    """
    index = track.index
    if int(frames_F.max()) >= index.num_frames:
        raise DecodeError(
            f"frame {int(frames_F[frames_F >= index.num_frames][0])} not decodable: the video has {index.num_frames} frames, but its "
            f"track promises frames [{track.first_frame}, {track.first_frame + track.num_rows}). Run 'trajload doctor'."
        )
    seek = index.seek_of_frame_F[frames_F]
    last = index.packet_of_frame_F[frames_F]
    order = np.argsort(seek, kind="stable")
    out: list[tuple[int, int]] = []
    for s, e in zip(seek[order].tolist(), last[order].tolist(), strict=True):
        if out and s <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], e + 1))
        else:
            out.append((s, e + 1))
    return out


class VideoReads(list[ByteRange]):
    """The ranges of a video window, and how its frames come out of them: what decoding need not work out again."""

    __slots__ = ("first_F", "frames_F", "groups", "segments")

    def __init__(
        self,
        ranges: list[ByteRange],
        frames_F: Int64Array,
        first_F: Int64Array,
        segments: list[tuple[int, int]],
        groups: list[tuple[int, int]],
    ) -> None:
        super().__init__(ranges)
        self.frames_F = frames_F
        """Frames of the video, rising, each once."""
        self.first_F = first_F
        """Where each of them is first asked for."""
        self.segments = segments
        """Packet runs to feed; see `video_segments`."""
        self.groups = groups
        """Packet runs of the whole groups that hold them."""


def plan_video(track: VideoTrack, rows: Int64Array) -> VideoReads:
    """Return the reads of a window of a video; `rows` are checked and not empty."""
    index = track.index
    needed, first = np.unique(rows, return_index=True)
    frames_F = needed + track.first_frame
    segments = video_segments(track, frames_F)
    groups = _whole_groups(index.is_keyframe_P, segments)
    packets = (
        slice(*groups[0]) if len(groups) == 1 else np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in groups])
    )
    ranges = merge_ranges(track.file, index.offset_P[packets], index.size_P[packets])
    return VideoReads(ranges, frames_F, first, segments, groups)


def _whole_groups(is_key_P: BoolArray, segments: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return half-open packet runs of the whole groups of pictures that `segments` touch."""
    out: list[tuple[int, int]] = []
    for start, stop in segments:
        # argmax on bool stops at the first True, so this costs the length of one group
        rest = is_key_P[stop:]
        step = int(rest.argmax()) if rest.size else 0
        end = stop + step if rest.size and rest[step] else len(is_key_P)
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def reorder_depth(pts_P: Int64Array) -> int:
    """Return how many frames a decoder must hold back to give these packets' frames in display order."""
    rank = np.empty(len(pts_P), dtype=np.int64)
    rank[np.argsort(pts_P)] = np.arange(len(pts_P))
    # The greatest number of frames that precede one in decode order and follow it in display order.
    return int((np.arange(len(pts_P)) - rank).max(initial=0))


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

    def addresses(self, offset_P: Int64Array, size_P: Int64Array) -> Int64Array:
        """Return where in memory each piece stands; good while the blobs live."""
        start_R = np.array(self._starts, dtype=np.int64)
        base_R = np.array([np.frombuffer(view, dtype=np.uint8).ctypes.data for view in self._views], dtype=np.int64)
        stop_R = np.array([where.offset + where.size for where in self._ranges], dtype=np.int64)
        k_P = np.searchsorted(start_R, offset_P, side="right") - 1
        if (k_P < 0).any() or (size_P < 0).any() or (offset_P + size_P > stop_R[k_P]).any():
            raise AssertionError("a packet was not planned")
        return base_R[k_P] + (offset_P - start_R[k_P])

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes [offset, offset + size) of the file."""
        for k in range(len(self._starts) - 1, -1, -1):
            if offset >= self._starts[k]:
                start = offset - self._starts[k]
                return self._views[k][start : start + size]
        raise AssertionError(f"offset {offset} was not planned")
