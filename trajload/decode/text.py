"""Language and JSON: members small enough to be read whole."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from trajload.decode.arrays import check_bytes
from trajload.decode.plan import Blobs
from trajload.errors import ConfigError, DecodeError, WindowError
from trajload.refs import ByteRange, TableTrack, TextTrack
from trajload.spec import StreamSpec

__all__ = ["read_table_text", "read_text_member"]


def read_text_member(track: TextTrack, row: int, blobs: list[bytes], *, spec: StreamSpec) -> Any:
    """Return row `row` of a txt or json member."""
    if not 0 <= row < track.num_rows:
        raise WindowError(
            f"row {row} does not exist: the text has {track.num_rows} rows, so expected 0 <= row < {track.num_rows}."
        )
    where = ByteRange(track.file, track.offset, track.size)
    data = Blobs([where], blobs).view(track.offset, track.size)
    if track.checksum is not None:
        check_bytes("text", track.file, track.offset, data, track.checksum)
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as err:
        raise DecodeError(
            f"text of stream {spec.name!r} is not UTF-8: byte 0x{err.object[err.start]:02x} at {err.start} of {track.size} bytes. Save it as UTF-8."
        ) from err
    if track.encoding == "txt":
        return text
    if track.encoding != "json":
        raise ConfigError(f"text encoding {track.encoding!r} is unknown: expected 'txt' or 'json'.")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise DecodeError(f"JSON of stream {spec.name!r} cannot be parsed: {err}.") from err
    if not isinstance(value, list) and track.num_rows == 1:
        return value  # stands for the whole episode
    if not isinstance(value, list) or len(value) != track.num_rows:
        got = f"a list of {len(value)}" if isinstance(value, list) else f"one {type(value).__name__}"
        raise DecodeError(
            f"JSON of stream {spec.name!r} holds {got}, expected a list of {track.num_rows} values, one per row."
        )
    return value[row]


def read_table_text(track: TableTrack, row: int, *, spec: StreamSpec) -> Any:
    """Return row `row` of a text column that a foreign source reads."""
    values = track.reader.read_rows(np.array([row], dtype=np.int64))
    if len(values) != 1:
        raise DecodeError(f"table {track.file!r} gave {len(values)} values of stream {spec.name!r} for one row.")
    return values[0]
