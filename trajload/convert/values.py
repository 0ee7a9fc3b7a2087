"""Values of a foreign stream as `Writer.add_episode` takes them, and the spec they are stored under."""

# Shapes: N rows, T rows of one batch, C channels, H height, W width

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from trajload.convert.cut import cut_video
from trajload.decode.context import DecodeContext
from trajload.decode.plan import plan_reads
from trajload.decode.rows import decode_rows, row_shape
from trajload.errors import DecodeError, SourceError
from trajload.refs import TableTrack, VideoTrack
from trajload.shards.video_encode import VideoEncode, encode_video, remux_video
from trajload.shards.video_index import build_video_index
from trajload.spec import Image, StreamSpec
from trajload.storage import ByteStore
from trajload.storage.local import check_inside
from trajload.types import NDArray

__all__ = ["iter_frames", "json_safe", "native_spec", "remuxed_value", "table_value", "video_value"]

_BYTES_AT_ONCE = 128 << 20


def native_spec(spec: StreamSpec, reencode: VideoEncode | None) -> StreamSpec:
    """Return the spec under which a foreign stream is stored: columns become npy, text becomes json."""
    if spec.is_video and reencode is not None:
        # Depth and masks of one channel become FFV1, whatever the settings.
        return replace(spec, encoding="mkv" if reencode.codec == "ffv1" or spec.shape[2] == 1 else "mp4")
    if spec.encoding != "table":
        return spec
    return replace(spec, encoding="json" if spec.is_text else "npy")


def table_value(track: TableTrack, spec: StreamSpec) -> Any:
    """Return all rows of a table: an array, encoded pictures, or text (one string where all rows are the same)."""
    rows = np.arange(track.num_rows, dtype=np.int64)
    values = track.reader.read_rows(rows)
    if not spec.is_text:
        return values
    items = list(values)
    # a list alone would be taken for one value of each row
    return items[0] if all(item == items[0] for item in items) and not isinstance(items[0], (list, tuple)) else items


def video_value(
    track: VideoTrack,
    spec: StreamSpec,
    *,
    store: ByteStore,
    root: Path,
    reencode: VideoEncode | None,
    rate: Fraction | None,
) -> tuple[Path | bytes, str]:
    """Return a video that holds exactly the track's frames, and the report's counter it falls under.

    Raises:
        SourceError: A stretch cannot be cut out bit by bit, and encoding anew was not asked for.
    """
    if reencode is not None:
        data, _ = encode_video(iter_frames(track, spec, store), rate_hz=rate or Fraction(30), encode=reencode)
        return data, "num_videos_encoded"
    path = root / check_inside(track.file)
    if track.first_frame == 0 and track.num_rows == track.index.num_frames:
        return path, "num_videos_copied"
    return cut_video(path, track.index, track.first_frame, track.num_rows), "num_videos_cut"


def remuxed_value(path: Path, num_steps: int) -> bytes | None:
    """Return the packets of an episode's own video in an mp4 that can be indexed; None where that does not help."""
    try:
        data, _ = remux_video(path)
        return data if build_video_index(data).num_frames == num_steps else None
    except (SourceError, DecodeError):
        return None


def iter_frames(track: VideoTrack, spec: StreamSpec, store: ByteStore) -> Iterator[NDArray]:
    """Yield the frames (H, W, C) one by one, decoded a few at a time."""
    context = DecodeContext()
    shape, dtype = row_shape(spec, Image())
    try:
        count = int(np.clip(_BYTES_AT_ONCE // (math.prod(shape) * dtype.itemsize), 8, 256))
        for start, stop in _pieces(track, count):
            rows = np.arange(start, stop, dtype=np.int64)
            blobs = [store.read(where) for where in plan_reads(track, rows)]
            out_TCHW = np.empty((len(rows), *shape), dtype=dtype)
            decode_rows(track, rows, blobs, out_TCHW, spec=spec, request=Image(), store=store, context=context)
            yield from np.ascontiguousarray(out_TCHW.transpose(0, 2, 3, 1))
    finally:
        context.close()


def _pieces(track: VideoTrack, count: int) -> Iterator[tuple[int, int]]:
    """Yield half-open runs of at most `count` rows, which end with a group of pictures where one ends.

    A run that begins inside a group decodes that group's beginning once more.
    """
    seek_F = track.index.seek_of_frame_F[track.first_frame : track.first_frame + track.num_rows]
    ends = [*(np.flatnonzero(np.diff(seek_F)) + 1).tolist(), track.num_rows]
    start = 0
    while start < track.num_rows:
        last = bisect_right(ends, start + count) - 1
        stop = ends[last] if last >= 0 and ends[last] > start else start + count
        yield start, stop
        start = stop


def json_safe(value: Any) -> Any:
    """Return `value` with what JSON cannot say (dates, NaN, bytes) as its text."""
    if isinstance(value, Mapping):
        return {str(k): json_safe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
