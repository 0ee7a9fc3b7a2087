"""The columns of an index: which table each belongs to, its dtype, and how the tables hang together.

`docs/format.md` says what each means. New columns may be added within a version; readers ignore those they do not know.
"""

from __future__ import annotations

import numpy as np

__all__ = ["BLOBS", "INDEX_FORMAT", "INDEX_VERSION", "PREFIXES", "RUNS", "SCALARS"]

INDEX_FORMAT = "trajload-index"
INDEX_VERSION = "1"

SCALARS: dict[str, type[np.generic]] = {
    "episode.num_steps": np.int64,
    "episode.terminated": np.int8,
    "episode.start_ns": np.int64,
    "episode.rate_num": np.int64,
    "episode.rate_den": np.int64,
    "member.offset": np.int64,
    "member.size": np.int64,
    "member.checksum": np.uint64,
    "member.role": np.uint8,
    "member.stream": np.int32,
    "track.stream": np.int32,
    "track.encoding": np.uint8,
    "track.num_rows": np.int64,
    "track.member": np.int64,
    "track.detail": np.int64,
    "npy.data_offset": np.int64,
    "npy.checksum": np.uint64,
    "zst.rows_per_chunk": np.int64,
    "video.profile": np.int64,
}
"""One value for each row of the table before the dot."""

PREFIXES: dict[str, tuple[str, ...]] = {
    "episode.key_offset": ("episode.key_text",),
    "episode.metadata_offset": ("episode.metadata_text",),
    "episode.time_offset": ("step_time.ns",),
    "episode.member_offset": ("member.offset",),
    "episode.track_offset": ("track.stream",),
    "track.time_offset": ("stream_time.ns",),
    "zst.chunk_offset": ("chunk.offset", "chunk.size", "chunk.checksum"),
    "video.packet_offset": (
        "packet.offset",
        "packet.size",
        "packet.pts",
        "packet.dts",
        "packet.is_keyframe",
        "packet.is_discard",
    ),
    "video.gop_offset": ("gop.checksum",),
    "video.frame_offset": ("frame.packet", "frame.seek_packet"),
    "profile.offset": ("profile.text",),
}
"""int64, one value more than its table has rows: row i owns [p[i], p[i + 1]) of each of these columns."""

BLOBS = ("episode.key_text", "episode.metadata_text", "profile.text")
"""uint8, UTF-8 text of all rows joined."""

RUNS: dict[str, type[np.generic]] = {
    "step_time.ns": np.int64,
    "stream_time.ns": np.int64,
    "chunk.offset": np.int64,
    "chunk.size": np.int64,
    "chunk.checksum": np.uint64,
    "packet.offset": np.int64,
    "packet.size": np.int64,
    "packet.pts": np.int64,
    "packet.dts": np.int64,
    "packet.is_keyframe": np.bool_,
    "packet.is_discard": np.bool_,
    "gop.checksum": np.uint64,
    "frame.packet": np.int64,
    "frame.seek_packet": np.int64,
}
"""Runs of values that a prefix column cuts into rows."""


def dtypes() -> dict[str, np.dtype[np.generic]]:
    """Return the dtype of every column."""
    out = {name: np.dtype(kind) for name, kind in {**SCALARS, **RUNS}.items()}
    out.update({name: np.dtype(np.int64) for name in PREFIXES})
    out.update({name: np.dtype(np.uint8) for name in BLOBS})
    return out


def contradiction(shapes: dict[str, tuple[np.dtype[np.generic], int]]) -> str | None:
    """Return what is wrong with columns of these dtypes and lengths, or None."""
    for name, dtype in dtypes().items():
        if name not in shapes:
            return f"it lacks column {name!r}"
        if shapes[name][0] != dtype:
            return f"column {name!r} is {shapes[name][0]}, expected {dtype}"
    lengths = {name: length for name, (_, length) in shapes.items()}
    rows: dict[str, int] = {}
    for name in (*SCALARS, *PREFIXES):
        length = lengths[name] - (1 if name in PREFIXES else 0)
        table = name.split(".")[0]
        if rows.setdefault(table, length) != length:
            return f"column {name!r} has {length} rows, expected {rows[table]} like others of {table!r}"
        if length < 0:
            return f"column {name!r} is empty"
    for prefix, names in PREFIXES.items():
        if len({lengths[name] for name in names}) != 1:
            return f"columns {', '.join(names)} of {prefix!r} differ in length"
    return None
