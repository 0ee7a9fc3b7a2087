"""Tracks out of an index: where the rows of one stream in one episode stand."""

from __future__ import annotations

import math

import numpy as np

from trajload.errors import ShardCorruptError
from trajload.refs import ArrayTrack, ChunkTrack, ImageTrack, TextTrack, Track, VideoTrack
from trajload.shards.index import ShardIndex, TrackRow
from trajload.shards.layout import ENCODINGS
from trajload.spec import IMAGE_ENCODINGS, VIDEO_ENCODINGS, StreamSpec

__all__ = ["build_track"]


def build_track(index: ShardIndex, spec: StreamSpec, file: str, num_steps: int, row: TrackRow) -> Track:
    """Return the track that `row` of `index` describes.

    Args:
        index: Index of the shard.
        spec: The stream, as the manifest declares it.
        file: The shard, relative to the dataset folder.
        num_steps: Of the episode, which a stepwise stream must match.
        row: The stream's row in the track table.

    Raises:
        ShardCorruptError: The index contradicts itself or the manifest.
    """
    if row.encoding >= len(ENCODINGS):
        raise ShardCorruptError(f"encoding code {row.encoding} of the index is unknown. Run 'trajload verify'.")
    encoding = ENCODINGS[row.encoding]
    if encoding not in (VIDEO_ENCODINGS if spec.is_video else (spec.encoding,)):
        raise ShardCorruptError(
            f"stream {spec.name!r} is stored as {encoding!r} by the index, but as {spec.encoding!r} by the manifest. "
            "Run 'trajload verify'."
        )
    is_whole = spec.is_text and row.num_rows == 1
    if spec.clock == "stepwise" and row.num_rows != num_steps and not is_whole:
        raise ShardCorruptError(
            f"stepwise stream {spec.name!r} has {row.num_rows} rows in the index, expected {num_steps}. Run 'trajload verify'."
        )
    if encoding == "npy":
        return _array(index, spec, file, row)
    if encoding == "npy.zst":
        return _chunks(index, spec, file, row)
    if encoding in IMAGE_ENCODINGS:
        return _images(index, spec, file, row, encoding)
    if encoding in VIDEO_ENCODINGS:
        return _video(index, spec, file, row)
    return _text(index, file, row, encoding)


def _array(index: ShardIndex, spec: StreamSpec, file: str, row: TrackRow) -> ArrayTrack:
    index.check_rows("npy.data_offset", row.detail)
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    offset = int(index.column("npy.data_offset")[row.detail])
    index.check_range(offset, row.num_rows * dtype.itemsize * math.prod(spec.shape))
    return ArrayTrack(
        file=file,
        offset=offset,
        dtype=dtype,
        row_shape=spec.shape,
        num_rows=row.num_rows,
        checksum=int(index.column("npy.checksum")[row.detail]),
    )


def _chunks(index: ShardIndex, spec: StreamSpec, file: str, row: TrackRow) -> ChunkTrack:
    index.check_rows("zst.rows_per_chunk", row.detail)
    chunks = {
        name: index.run("zst.chunk_offset", row.detail, f"chunk.{name}") for name in ("offset", "size", "checksum")
    }
    index.check_inside(chunks["offset"], chunks["size"])
    per_chunk = int(index.column("zst.rows_per_chunk")[row.detail])
    if per_chunk < 1 or len(chunks["offset"]) != -(-row.num_rows // per_chunk):
        raise ShardCorruptError(
            f"stream {spec.name!r} has {len(chunks['offset'])} chunks of {per_chunk} rows in the index for "
            f"{row.num_rows} rows. Run 'trajload verify'."
        )
    return ChunkTrack(
        file=file,
        dtype=np.dtype(spec.dtype).newbyteorder("<"),
        row_shape=spec.shape,
        num_rows=row.num_rows,
        rows_per_chunk=per_chunk,
        offset_K=chunks["offset"],
        size_K=chunks["size"],
        checksum_K=chunks["checksum"],
    )


def _images(index: ShardIndex, spec: StreamSpec, file: str, row: TrackRow, encoding: str) -> ImageTrack:
    index.check_rows("member.offset", row.member, row.num_rows)
    members = slice(row.member, row.member + row.num_rows)
    offset_N, size_N = index.column("member.offset")[members], index.column("member.size")[members]
    index.check_inside(offset_N, size_N)
    height, width, channels = spec.shape
    return ImageTrack(
        file=file,
        encoding=encoding,
        shape=(height, width, channels),
        offset_N=offset_N,
        size_N=size_N,
        checksum_N=index.column("member.checksum")[members],
    )


def _video(index: ShardIndex, spec: StreamSpec, file: str, row: TrackRow) -> VideoTrack:
    video = index.video(row.detail)
    if video.num_frames != row.num_rows:
        raise ShardCorruptError(
            f"video of stream {spec.name!r} has {video.num_frames} frames in the index, expected {row.num_rows}."
        )
    return VideoTrack(file=file, index=video, first_frame=0, num_rows=row.num_rows)


def _text(index: ShardIndex, file: str, row: TrackRow, encoding: str) -> TextTrack:
    index.check_rows("member.offset", row.member)
    offset, size = int(index.column("member.offset")[row.member]), int(index.column("member.size")[row.member])
    index.check_range(offset, size)
    return TextTrack(
        file=file,
        encoding=encoding,
        offset=offset,
        size=size,
        checksum=int(index.column("member.checksum")[row.member]),
        num_rows=row.num_rows,
    )
