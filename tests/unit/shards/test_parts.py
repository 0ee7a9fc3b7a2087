"""Tar headers, npy headers, zstd frames, column files: each against a reader that is not ours."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from trajload.errors import ConfigError, ShardCorruptError, ShardNotFoundError
from trajload.shards.columns import ColumnFile, columns_to_parts
from trajload.shards.layout import check_episode_key, check_streams, shard_number
from trajload.shards.npy import npy_header, parse_npy_header
from trajload.shards.tar import END_OF_ARCHIVE, header_bytes, padding, tar_header
from trajload.shards.zst import compress_rows, frame_sizes
from trajload.spec import StreamSpec
from trajload.types import Modality

# ---- tar ----


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=150),
            st.binary(max_size=1200),
        ),
        max_size=4,
    )
)
def test_tarfile_reads_back_any_name_and_content(members: list[tuple[str, bytes]]) -> None:
    """Long, foreign and plain names come back through Python's tarfile, with their contents."""
    out = b""
    for name, data in members:
        header = tar_header(name, len(data))
        assert len(header) == header_bytes(name, len(data)) and len(header) % 512 == 0
        out += header + data + bytes(padding(len(data)))
    with tarfile.open(fileobj=io.BytesIO(out + END_OF_ARCHIVE), errors="strict") as tar:
        got = [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
    assert got == members


def test_a_member_above_8_gib_has_its_size_in_pax() -> None:
    """ustar ends at 8 GiB; the header goes on."""
    size = 9 << 30
    info = tarfile.TarInfo.frombuf(tar_header("a.mp4", size)[:512], "utf-8", "strict")
    assert info.type == tarfile.XHDTYPE
    assert b"19 size=9663676416\n"[3:] in tar_header("a.mp4", size)


def test_a_plain_header_is_one_block() -> None:
    """No pax record for what ustar can say."""
    assert len(tar_header("000000.action.npy", 123)) == 512


# ---- npy ----


@given(
    st.sampled_from(["bool", "uint8", "int32", "float16", "float64"]),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=40).map(tuple),
)
def test_npy_header_is_padded_and_read_by_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    """Whole blocks of 512 bytes, and numpy's own parser agrees."""
    header = npy_header(np.dtype(dtype), shape)
    assert len(header) % 512 == 0
    stream = io.BytesIO(header)
    assert np.lib.format.read_magic(stream) == (1, 0)
    assert np.lib.format.read_array_header_1_0(stream) == (shape, False, np.dtype(dtype))
    assert parse_npy_header(header) == (len(header), np.dtype(dtype), shape)


@pytest.mark.parametrize(
    "array", [np.array([{}], dtype=object), np.asfortranarray(np.ones((2, 3)))], ids=["object", "fortran"]
)
def test_npy_that_is_not_plain_rows_is_refused(array: np.ndarray) -> None:
    """Python objects would be unpickled, Fortran order would be transposed: neither happens."""
    out = io.BytesIO()
    np.save(out, array)
    with pytest.raises(ShardCorruptError, match="expected plain numbers in C order"):
        parse_npy_header(out.getvalue())


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x01\x00\x10\x00(((((((((((((((\n", b"GIF89a"])
def test_damaged_npy_header_is_refused(data: bytes) -> None:
    """Text that is no header is corruption, whatever numpy makes of it."""
    with pytest.raises(ShardCorruptError, match="npy header unusable"):
        parse_npy_header(data)


# ---- npy.zst ----


def test_frame_sizes_agree_with_the_decompressor() -> None:
    """Block headers alone give the same frames as decompressing does."""
    rows = np.random.Generator(np.random.Philox(3)).integers(0, 9, (700, 1000), dtype=np.uint8)
    data, detail = compress_rows(rows)
    data += zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(b"x" * 300_000)
    expected, rest = [], data
    while rest:
        one = zstandard.ZstdDecompressor().decompressobj()
        one.decompress(rest)
        expected.append(len(rest) - len(one.unused_data))
        rest = one.unused_data
    assert frame_sizes(data).tolist() == expected
    assert detail.size_K.tolist() == expected[1:-1]
    assert len(detail.size_K) == 3, "262 rows of 1000 bytes to a chunk"


@pytest.mark.parametrize("cut", [1, 3, 10])
def test_truncated_frames_are_refused(cut: int) -> None:
    """A member that ends inside a frame is corrupt, not short."""
    data, _ = compress_rows(np.arange(1000, dtype=np.int64))
    with pytest.raises(ShardCorruptError, match=r"truncated|does not begin a zstd frame"):
        frame_sizes(data[:-cut])


# ---- columns ----


def write_columns(path: Path) -> dict[str, np.ndarray]:
    columns = {
        "a": np.arange(7, dtype=np.int64),
        "flag": np.array([True, False, True]),
        "none": np.empty(0, np.int32),
        "sum": np.array([2**64 - 1], dtype=np.uint64),
        "text": np.frombuffer(b"hello", np.uint8),
    }
    path.write_bytes(b"".join(columns_to_parts(columns, {"format": "test"})))
    return columns


def test_columns_are_plain_safetensors(tmp_path: Path) -> None:
    """The safetensors library reads the file, with the same values and dtypes."""
    columns = write_columns(tmp_path / "x.idx")
    got = safetensors.numpy.load((tmp_path / "x.idx").read_bytes())
    assert set(got) == set(columns)
    for name, value in columns.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_array_equal(got[name], value)


def test_columns_come_back_as_read_only_views(tmp_path: Path) -> None:
    """Mapped, aligned, and not writable."""
    columns = write_columns(tmp_path / "x.idx")
    file = ColumnFile(tmp_path / "x.idx")
    for name, value in columns.items():
        got = file.column(name)
        np.testing.assert_array_equal(got, value)
        assert not len(got) or (not got.flags.writeable and got.flags.aligned and not got.flags.owndata)
    assert file.metadata["format"] == "test"


def test_every_flipped_bit_of_a_column_file_is_found(tmp_path: Path) -> None:
    """With header and size known from the manifest, no byte of the file can change unseen."""
    path = tmp_path / "x.idx"
    columns = write_columns(path)
    good = path.read_bytes()
    header = ColumnFile(path).header_checksum
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x10]) + good[position + 1 :])
        with pytest.raises(ShardCorruptError, match=r"x.idx' is damaged"):
            file = ColumnFile(path, num_bytes=len(good), header_checksum=header)
            for name in columns:
                file.column(name)


def test_column_file_sizes_and_absence_are_told(tmp_path: Path) -> None:
    """Truncation names both sizes, absence the cure."""
    path = tmp_path / "x.idx"
    write_columns(path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ShardCorruptError, match=f"is truncated: got {size - 3} bytes, expected {size}"):
        ColumnFile(path, num_bytes=size)
    with pytest.raises(ShardCorruptError, match="is damaged"):
        ColumnFile(path)
    path.write_bytes(b"short")
    with pytest.raises(ShardCorruptError, match="got 5 bytes, expected at least 8"):
        ColumnFile(path)
    path.unlink()
    with pytest.raises(ShardNotFoundError, match=r"does not exist.*rebuild_index"):
        ColumnFile(path)


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b"[]",
        b'{"__metadata__":{"checksums":"{}"},"a":{"dtype":"I64","shape":[2],"data_offsets":[0,8]}}',
        b'{"__metadata__":{"checksums":"{}"},"a":{"dtype":"I64","shape":[-1],"data_offsets":[8,0]}}',
        b'{"__metadata__":{"checksums":"{}"},"a":{"dtype":"OBJ","shape":[1],"data_offsets":[0,8]}}',
        b'{"__metadata__":{"checksums":"{}"},"a":{"dtype":"I64","shape":[10],"data_offsets":[0,80]}}',
        b"\xff\xff",
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, header: bytes) -> None:
    """Offsets outside the file, unknown dtypes and other JSON never reach the mapping."""
    (tmp_path / "x.idx").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(ShardCorruptError, match="its header is unusable"):
        ColumnFile(tmp_path / "x.idx")


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    """A length field of 2**63 does not allocate."""
    (tmp_path / "x.idx").write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(ShardCorruptError, match=f"got a header of {2**63} bytes, expected at most 2"):
        ColumnFile(tmp_path / "x.idx")


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    """An index of another make says what it lacks."""
    (tmp_path / "x.idx").write_bytes(json.dumps({}).encode())
    write_columns(tmp_path / "x.idx")
    with pytest.raises(ShardCorruptError, match="lacks column 'b'"):
        ColumnFile(tmp_path / "x.idx").column("b")


# ---- names ----


@pytest.mark.parametrize("key", ["", "a.b", "a/b", "a\\b", "__x__", " a", "a\n", "k" * 201, 3, "\ud800"])
def test_keys_that_webdataset_cannot_read_are_refused(key: object) -> None:
    """The message shows the key."""
    with pytest.raises(ConfigError, match="cannot name an episode"):
        check_episode_key(key)  # type: ignore[arg-type]


def spec(name: str = "x", **changes: object) -> StreamSpec:
    fields: dict[str, object] = {"modality": Modality.ACTION, "encoding": "npy", "shape": (2,), "dtype": "float32"}
    return StreamSpec(name=name, **{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ([], "streams=\\[\\] is empty"),
        ([spec("State"), spec("state")], "'State' and 'state' are equal but for case"),
        ([spec("trajload")], "'trajload' is kept for the format"),
        ([spec("trajload.x")], "'trajload.x' is kept for the format"),
        ([spec("imu.timestamps_ns")], "'imu.timestamps_ns' is kept for the format"),
        ([spec("a..b")], "'a..b' cannot name a member"),
        ([spec(encoding="table")], "encoding='table' of stream 'x' cannot be stored"),
        ([spec(encoding="txt")], "dtype='float32' and encoding='txt'"),
        ([spec(dtype="str", shape=())], "dtype='str' and encoding='npy'"),
        ([spec(dtype="complex64")], "dtype='complex64': expected a bool, integer or float"),
        ([spec(dtype=">f4")], "dtype='>f4': expected the plain name 'float32'"),
        ([spec(shape=(0,))], "has shape \\(0,\\): expected sizes of at least 1"),
        ([spec(encoding="jpg", shape=(4, 4, 1), dtype="uint16")], "dtype='uint16': expected one of uint8"),
        ([spec(encoding="png", shape=(4, 4, 2), dtype="uint8")], "shape \\(4, 4, 2\\)"),
        ([spec(encoding="png", shape=(4, 4, 3), dtype="uint16")], "shape \\(4, 4, 3\\)"),
        (["x"], "streams holds 'x'"),
    ],
)
def test_streams_that_cannot_be_stored_are_refused(streams: list[StreamSpec], message: str) -> None:
    """Before anything is written, naming stream and field."""
    with pytest.raises(ConfigError, match=message):
        check_streams(streams)


def test_shard_numbers_are_read_from_names() -> None:
    """Only names the Writer gives count."""
    assert [shard_number(n) for n in ("shards/000012.tar", "000003.idx.tmp", "x.tar", "stats.json")] == [
        12,
        3,
        None,
        None,
    ]
