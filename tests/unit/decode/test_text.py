"""Language and JSON members, and text columns of tables."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xxhash

from trajload.decode import DecodeContext, plan_reads, read_text, row_shape
from trajload.errors import ConfigError, DecodeError, ShardCorruptError, WindowError
from trajload.refs import ArrayTrack, TableTrack, TextTrack
from trajload.spec import Signal, StreamSpec
from trajload.types import Modality

LANGUAGE = StreamSpec(name="task", modality=Modality.LANGUAGE, encoding="txt", shape=(), dtype="str")
METADATA = StreamSpec(name="meta", modality=Modality.METADATA, encoding="json", shape=(), dtype="json")


def read(payload: bytes, encoding: str, row: int = 0, num_rows: int = 1, checksum: int | None = None) -> Any:
    checksum = xxhash.xxh3_64_intdigest(payload) if checksum is None else checksum
    track = TextTrack("s.tar", encoding, 512, len(payload), checksum, num_rows)
    data = b"\0" * 512 + payload
    spec = LANGUAGE if encoding == "txt" else METADATA
    blobs = [data[r.offset : r.offset + r.size] for r in plan_reads(track, np.array([row]))]
    return read_text(track, row, blobs, spec=spec, context=DecodeContext())


def test_text_is_the_member() -> None:
    """Every character comes back, line ends and blanks included."""
    assert read("Schiebe die Tür zu. 把门关上\r\n ".encode(), "txt") == "Schiebe die Tür zu. 把门关上\r\n "
    assert read(b"same for all", "txt", row=3, num_rows=5) == "same for all"


def test_json_value_is_the_member() -> None:
    """One value stands for the episode, whatever it is."""
    for value in ({"success": True, "tags": [1, None]}, "text", 4.5, None):
        assert read(json.dumps(value).encode(), "json") == value


def test_json_list_gives_the_rows_value() -> None:
    """A list with one value per row is indexed by row."""
    assert read(b'["a", {"b": 1}, 3]', "json", row=1, num_rows=3) == {"b": 1}
    assert read(b'["a"]', "json") == "a"
    assert read(b'[["a", "b"]]', "json") == ["a", "b"]


@pytest.mark.parametrize(
    ("payload", "encoding", "num_rows", "message"),
    [
        (b"gr\xfc\xdfe", "txt", 1, r"text of stream 'task' is not UTF-8: byte 0xfc at 2 of 5 bytes"),
        (b"{'a': 1}", "json", 1, r"JSON of stream 'meta' cannot be parsed"),
        (b"[" * 100_000, "json", 1, r"JSON of stream 'meta' cannot be parsed"),
        (b"[1, 2]", "json", 3, r"holds a list of 2, expected a list of 3 values"),
        (b"[1, 2]", "json", 1, r"holds a list of 2, expected a list of 1 values"),
        (b'{"a": 1}', "json", 3, r"holds one dict, expected a list of 3 values"),
    ],
)
def test_bad_text_is_named(payload: bytes, encoding: str, num_rows: int, message: str) -> None:
    """Wrong encoding, syntax, depth and count."""
    with pytest.raises(DecodeError, match=message):
        read(payload, encoding, num_rows=num_rows)


def test_flipped_bit_in_text_is_found() -> None:
    """Text has a checksum like everything else."""
    with pytest.raises(ShardCorruptError, match=r"text at bytes \[512, 515\) of 's.tar' is damaged"):
        read(b"abc", "txt", checksum=xxhash.xxh3_64_intdigest(b"abd"))


@pytest.mark.parametrize("row", [-1, 3])
def test_row_outside_is_a_window_error(row: int) -> None:
    """Neither planning nor reading wraps or clamps."""
    track = TextTrack("s.tar", "json", 0, 2, None, 3)
    with pytest.raises(WindowError, match=rf"row {row} does not exist"):
        plan_reads(track, np.array([row]))
    with pytest.raises(WindowError, match=rf"row {row} does not exist: the text has 3 rows"):
        read_text(track, row, [b"[]"], spec=METADATA, context=DecodeContext())


class Reader:
    def read_rows(self, rows: Any) -> list[str]:
        return [f"task {row}" for row in rows]


def test_table_text_is_what_the_reader_gives() -> None:
    """A text column of a foreign table."""
    track = TableTrack("t.parquet", Reader(), 9)
    assert read_text(track, 4, [], spec=LANGUAGE, context=DecodeContext()) == "task 4"
    with pytest.raises(WindowError, match="row 9 does not exist"):
        read_text(track, 9, [], spec=LANGUAGE, context=DecodeContext())


def test_text_and_arrays_are_not_mixed_up() -> None:
    """Each door refuses what belongs to the other."""
    with pytest.raises(ConfigError, match=r"stream 'task' holds str values, which have no shape"):
        row_shape(LANGUAGE, Signal())
    track = ArrayTrack("a", 0, np.dtype(np.float32), (), 3)
    with pytest.raises(ConfigError, match=r"stream 'task' is stored as ArrayTrack, which is not text"):
        read_text(track, 0, [], spec=LANGUAGE, context=DecodeContext())
