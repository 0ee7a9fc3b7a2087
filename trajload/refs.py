"""Addresses: of windows (`WindowRef`) and of bytes (`ByteRange`, the tracks).

A *track* says where the rows of one stream in one episode stand. Sources build tracks, decoders read them;
neither knows the other. All tracks are immutable, cheap, and hold no open file.
"""

# Shapes: N rows of a stream in an episode, K chunks, P packets, F frames, G groups of pictures

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

import numpy as np

from trajload.types import BoolArray, Int64Array, UInt64Array

__all__ = [
    "ArrayTrack",
    "ByteRange",
    "ChunkTrack",
    "ImageTrack",
    "RowReader",
    "TableTrack",
    "TextTrack",
    "Track",
    "VideoIndex",
    "VideoTrack",
    "WindowRef",
]


@dataclass(frozen=True, slots=True)
class WindowRef:
    """One window: which source, episode and steps, and its place in the global order."""

    source: str
    episode_index: int
    """Position of the episode in its dataset, 0-based."""
    episode_key: str
    start: int
    """First step of the window."""
    stop: int
    """Half-open end: last step + 1, not cut at the episode's end."""
    dilation: int
    window_id: int
    epoch: int
    position: int
    """Place in the global window sequence, the same for every world size."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [offset, offset + size) of `file`."""

    file: str
    offset: int
    size: int


class RowReader(Protocol):
    """What a foreign source implements for streams that are not byte ranges (parquet columns, HDF5, ...)."""

    def read_rows(self, rows: Int64Array) -> Any:
        """Return the values of `rows` (N,), in that order: an array (N, ...), a list of N objects for text, or a list
        of N encoded pictures (bytes) for jpg and png.

        Thread-safe. Rows may repeat and stand in any order; they lie inside [0, num_rows).
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ArrayTrack:
    """Rows stored raw and contiguous (npy), so that a window is one copy."""

    file: str
    offset: int
    """Of row 0, in bytes, past the npy header."""
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    num_rows: int
    checksum: int | None = None
    """xxh3_64 of all row bytes; verified the first time a process touches the track. None = not known."""

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.row_shape)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkTrack:
    """Rows in zstd-compressed chunks of `rows_per_chunk` rows (npy.zst); the last chunk may hold fewer."""

    file: str
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]
    num_rows: int
    rows_per_chunk: int
    offset_K: Int64Array
    size_K: Int64Array
    checksum_K: UInt64Array
    """xxh3_64 of each compressed chunk."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageTrack:
    """One encoded picture per row (jpg, png)."""

    file: str
    encoding: str
    shape: tuple[int, int, int]
    """(H, W, C) as shown."""
    offset_N: Int64Array
    size_N: Int64Array
    checksum_N: UInt64Array

    @property
    def num_rows(self) -> int:
        return len(self.offset_N)


@dataclass(frozen=True, slots=True, eq=False)
class VideoIndex:
    """The packet table of one video stream, and what a decoder needs to be opened without its container.

    Packets stand in decode order. Frames are counted in display order (rising pts), packets that a container's
    edit list discards excluded.
    """

    codec: str
    """FFmpeg decoder family name: 'h264', 'hevc', 'av1', 'vp9', 'vp8', 'mpeg4', 'ffv1', ..."""
    extradata: bytes
    time_base: Fraction
    width: int
    """As coded in the stream, before rotation."""
    height: int
    pix_fmt: str
    color_space: str
    """'bt709', 'bt470bg', 'smpte170m', 'bt2020nc', 'rgb', ... or 'unspecified'."""
    color_range: str
    """'limited', 'full' or 'unspecified'."""
    rotation: int
    """Degrees the picture must be turned clockwise to be shown: 0, 90, 180 or 270."""
    offset_P: Int64Array
    """Of each packet, from the start of the file (or of the tar member's shard: absolute in `VideoTrack.file`)."""
    size_P: Int64Array
    pts_P: Int64Array
    dts_P: Int64Array
    is_keyframe_P: BoolArray
    is_discard_P: BoolArray
    gop_checksum_G: UInt64Array
    """xxh3_64 of the packet bytes, joined in decode order, of each group: from one keyframe packet up to the next."""
    packet_of_frame_F: Int64Array
    """Packet of each frame in display order."""
    seek_of_frame_F: Int64Array
    """Keyframe packet where decoding must start for each frame to come out right (open GOPs considered)."""

    @property
    def num_frames(self) -> int:
        return len(self.packet_of_frame_F)

    @property
    def gop_start_G(self) -> Int64Array:
        """First packet of each group of pictures."""
        return np.flatnonzero(self.is_keyframe_P).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class VideoTrack:
    """A run of frames of one video: row i is frame `first_frame + i`. Several episodes may share one file."""

    file: str
    index: VideoIndex
    first_frame: int
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class TextTrack:
    """A small member read whole: `txt` gives one string for all rows, `json` an object, or a list with one per row."""

    file: str
    encoding: str
    offset: int
    size: int
    checksum: int | None
    num_rows: int
    """Rows the list holds, or 1 where one value stands for the whole episode."""


@dataclass(frozen=True, slots=True, eq=False)
class TableTrack:
    """Rows that a foreign source hands out itself. See `RowReader`."""

    file: str
    reader: RowReader
    num_rows: int


Track: TypeAlias = ArrayTrack | ChunkTrack | ImageTrack | VideoTrack | TextTrack | TableTrack
