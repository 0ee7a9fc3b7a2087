"""Raw arrays, zstd chunks and tables: rows as asked for, checksums verified, misfits named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard

from trajload.decode import DecodeContext, decode_rows, plan_reads
from trajload.errors import ConfigError, DecodeError, ShardCorruptError, WindowError
from trajload.refs import ArrayTrack, ByteRange, ChunkTrack, TableTrack
from trajload.spec import Signal, StreamSpec
from trajload.types import Modality

OFFSET = 512
ROWS = [[0], [19], list(range(5, 12)), [19, 0, 0, 7], [3, 2, 1], [18, 2]]


def signal_spec(shape: tuple[int, ...], dtype: str, encoding: Any = "npy") -> StreamSpec:
    return StreamSpec(name="s", modality=Modality.PROPRIOCEPTION, encoding=encoding, shape=shape, dtype=dtype)


def array_track(values: np.ndarray, checksum: bool = True) -> tuple[ArrayTrack, bytes]:
    raw = values.tobytes()
    digest = xxhash.xxh3_64_intdigest(raw) if checksum else None
    return ArrayTrack(
        "a.tar", OFFSET, values.dtype, values.shape[1:], len(values), digest
    ), b"\0" * OFFSET + raw + b"\0" * 99


def chunk_track(values: np.ndarray, rows_per_chunk: int) -> tuple[ChunkTrack, bytes]:
    chunks = [
        zstandard.compress(values[i : i + rows_per_chunk].tobytes()) for i in range(0, len(values), rows_per_chunk)
    ]
    sizes = np.array([len(c) for c in chunks], np.int64)
    offsets = OFFSET + np.concatenate(([0], np.cumsum(sizes)[:-1]))
    sums = np.array([xxhash.xxh3_64_intdigest(c) for c in chunks], np.uint64)
    track = ChunkTrack("c.tar", values.dtype, values.shape[1:], len(values), rows_per_chunk, offsets, sizes, sums)
    return track, b"\0" * OFFSET + b"".join(chunks)


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize(("shape", "dtype"), [((), "float64"), ((7,), "float32"), ((2, 3), "int16"), ((1,), "bool")])
def test_array_rows_are_the_stored_rows(rows: list[int], shape: tuple[int, ...], dtype: str, tools: Any) -> None:
    """Any shape, dtype, order and repetition: out[i] is row rows[i], bit for bit."""
    values = np.random.default_rng(1).integers(0, 2, (20, *shape)).astype(dtype)
    track, data = array_track(values)
    assert np.array_equal(tools.get_rows(track, data, rows, signal_spec(shape, dtype)), values[rows])


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("rows_per_chunk", [1, 6, 20, 64])
def test_chunk_rows_are_the_stored_rows(rows: list[int], rows_per_chunk: int, tools: Any) -> None:
    """Chunks of any length, also a short last one."""
    values = np.random.default_rng(2).normal(size=(20, 3)).astype(np.float32)
    track, data = chunk_track(values, rows_per_chunk)
    assert np.array_equal(tools.get_rows(track, data, rows, signal_spec((3,), "float32", "npy.zst")), values[rows])


def test_array_is_verified_once_per_context(tools: Any) -> None:
    """The whole array is read and checked the first time, and only its rows after that."""
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    track, data = array_track(values)
    context, store = DecodeContext(), tools.MemoryStore(data)
    rows = np.array([4, 5])
    for expected in ([ByteRange("a.tar", OFFSET, 240)], []):
        store.reads.clear()
        blobs = [data[r.offset : r.offset + r.size] for r in plan_reads(track, rows)]
        out = np.empty((2, 3), np.float32)
        decode_rows(
            track, rows, blobs, out, spec=signal_spec((3,), "float32"), request=Signal(), store=store, context=context
        )
        assert store.reads == expected
    other = tools.MemoryStore(data, root="elsewhere")
    decode_rows(
        track, rows, blobs, out, spec=signal_spec((3,), "float32"), request=Signal(), store=other, context=context
    )
    assert len(other.reads) == 1


def test_flipped_bit_in_an_array_is_found(tools: Any) -> None:
    """Damage in a row that was not asked for is found all the same, since the checksum is of the whole."""
    track, data = array_track(np.arange(60, dtype=np.float32).reshape(20, 3))
    bad = data[: OFFSET + 200] + bytes([data[OFFSET + 200] ^ 8]) + data[OFFSET + 201 :]
    with pytest.raises(
        ShardCorruptError,
        match=r"array at bytes \[512, 752\) of 'a.tar' is damaged: got checksum [0-9a-f]{16}, expected",
    ):
        tools.get_rows(track, bad, [0], signal_spec((3,), "float32"))


def test_array_without_checksum_is_read_as_it_is(tools: Any) -> None:
    """Foreign arrays whose checksum is not known cost no extra read."""
    values = np.arange(20, dtype=np.int64)
    track, data = array_track(values, checksum=False)
    assert tools.get_rows(track, data, [3], signal_spec((), "int64")).tolist() == [3]


def test_flipped_bit_in_a_chunk_is_found(tools: Any) -> None:
    """Each chunk has its checksum: others stay readable."""
    values = np.random.default_rng(3).normal(size=(20, 3))
    track, data = chunk_track(values, 5)
    place = int(track.offset_K[2]) + 9
    bad = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    spec = signal_spec((3,), "float64", "npy.zst")
    assert np.array_equal(tools.get_rows(track, bad, [0, 19], spec), values[[0, 19]])
    with pytest.raises(
        ShardCorruptError, match=rf"chunk 2 at bytes \[{track.offset_K[2]}, \d+\) of 'c.tar' is damaged"
    ):
        tools.get_rows(track, bad, [10], spec)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (zstandard.compress(b"\0" * 16), r"chunk 0 of 'c.tar' holds 16 bytes, expected 5 rows of 12 bytes"),
        (zstandard.compress(b"\0" * 60)[:-3], r"chunk 0 of 'c.tar' (holds 0 bytes|is not the promised zstd frame)"),
        (b"not zstd at all", r"chunk 0 of 'c.tar' is not the promised zstd frame"),
        (
            zstandard.compress(b"\0" * 100_000),
            r"chunk 0 of 'c.tar' holds more than 60 bytes, expected 5 rows of 12 bytes",
        ),
    ],
)
def test_chunk_of_another_length_is_named(payload: bytes, message: str, tools: Any) -> None:
    """A chunk whose checksum is right but whose content is not what the index promises."""
    track, _ = chunk_track(np.zeros((5, 3), np.float32), 5)
    size = np.array([len(payload)], np.int64)
    sums = np.array([xxhash.xxh3_64_intdigest(payload)], np.uint64)
    track = ChunkTrack("c.tar", track.dtype, (3,), 5, 5, track.offset_K, size, sums)
    with pytest.raises(DecodeError, match=message):
        tools.get_rows(track, b"\0" * OFFSET + payload, [0], signal_spec((3,), "float32", "npy.zst"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (signal_spec((3,), "float64"), r"holds float32 values, expected float64"),
        (signal_spec((4,), "float32"), r"holds rows of shape \(3,\), expected \(4,\)"),
    ],
)
def test_array_unlike_its_spec_is_named(spec: StreamSpec, message: str, tools: Any) -> None:
    """No value is cast and no row reshaped in silence."""
    track, data = array_track(np.zeros((20, 3), np.float32))
    with pytest.raises(DecodeError, match=message):
        tools.get_rows(track, data, [0], spec)


class Reader:
    def __init__(self, values: Any) -> None:
        self.values = values

    def read_rows(self, rows: Any) -> Any:
        return self.values[rows]


def test_table_rows_are_what_the_reader_gives(tools: Any) -> None:
    """A foreign table is asked for the rows, without any read of ours."""
    values = np.random.default_rng(5).normal(size=(9, 2))
    track = TableTrack("t.parquet", Reader(values), 9)
    assert plan_reads(track, np.array([1])) == []
    assert np.array_equal(
        tools.get_rows(track, b"", [8, 1, 1], signal_spec((2,), "float64", "table")), values[[8, 1, 1]]
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((9, 3)), r"table 't.parquet' gave rows of shape \(3,\) x 2, expected \(2,\) x 2"),
        (np.zeros((9, 2), np.complex128), r"gave complex128 values, expected float64"),
    ],
)
def test_table_unlike_its_spec_is_named(values: Any, message: str, tools: Any) -> None:
    """A column of another width or kind than declared."""
    with pytest.raises(DecodeError, match=message):
        tools.get_rows(TableTrack("t.parquet", Reader(values), 9), b"", [0, 1], signal_spec((2,), "float64", "table"))


@pytest.mark.parametrize("row", [-1, 20])
def test_rows_outside_are_window_errors(row: int) -> None:
    """For every kind of track, before any byte is read."""
    values = np.zeros((20, 3), np.float32)
    for track in (array_track(values)[0], chunk_track(values, 6)[0], TableTrack("t", Reader(values), 20)):
        with pytest.raises(WindowError, match=rf"row {row} does not exist: the stream has 20 rows here"):
            plan_reads(track, np.array([0, row]))


def test_rows_must_be_integers() -> None:
    """Floats and matrices are refused, not rounded or flattened."""
    track, _ = array_track(np.zeros((20, 3), np.float32))
    with pytest.raises(ConfigError, match=r"rows have shape \(1,\) and dtype float64: expected a 1-D integer array"):
        plan_reads(track, np.array([1.0]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"rows have shape \(1, 1\)"):
        plan_reads(track, np.array([[1]]))


def test_no_rows_need_nothing(tools: Any) -> None:
    """An empty request is no error."""
    track, data = array_track(np.zeros((20, 3), np.float32))
    assert plan_reads(track, np.zeros(0, np.int64)) == []
    assert tools.get_rows(track, data, np.zeros(0, np.int64), signal_spec((3,), "float32")).shape == (0, 3)
