"""Columns of numbers in one safetensors file: written with a checksum each, read by mapping, checked on first use.

The file is plain safetensors, so any reader of that format opens it. Two things are added in its free-text
metadata: `checksums`, the xxh3_64 of every column in hex, and whatever the caller puts there. The manifest keeps
the xxh3_64 of length and header, so header proves columns and manifest proves header, and no column has to be read
to trust another.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from trajload.errors import ShardCorruptError, ShardNotFoundError
from trajload.storage.lfs import LFS_ADVICE, is_lfs_pointer
from trajload.storage.regular import open_regular_fd
from trajload.types import NDArray, PathLikeStr

__all__ = ["ColumnFile", "columns_to_parts"]

_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ALIGN = 64
_MAX_HEADER_BYTES = 100_000_000


def hex64(value: int) -> str:
    """Return a 64-bit checksum as 16 hex digits; JSON numbers of that size are not safe in every language."""
    return f"{value:016x}"


def columns_to_parts(columns: Mapping[str, NDArray], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """Return the pieces of a safetensors file, header first. Same arguments, same bytes."""
    # Widest first: every column is then aligned to its own item size without gaps, which safetensors forbids.
    names = sorted(columns, key=lambda name: (-columns[name].dtype.itemsize, name))
    arrays = {name: np.ascontiguousarray(columns[name]) for name in names}
    checksums = {
        name: hex64(xxhash.xxh3_64_intdigest(arrays[name].data.cast("B") if arrays[name].size else b""))
        for name in names
    }
    header: dict[str, Any] = {"__metadata__": {**metadata, "checksums": json.dumps(checksums, separators=(",", ":"))}}
    end = 0
    for name in names:
        begin, end = end, end + arrays[name].nbytes
        header[name] = {"dtype": _NAMES[arrays[name].dtype], "shape": [len(arrays[name])], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-(8 + len(text)) % _ALIGN)
    head = len(text).to_bytes(8, "little") + text
    return [head, *(arrays[name].data.cast("B") for name in names if arrays[name].size)]


class ColumnFile:
    """One mapped safetensors file of one-dimensional columns. Thread-safe; arrays it gives are read-only views.

    A column is checked against its checksum when it is first asked for.
    """

    def __init__(self, path: PathLikeStr, *, num_bytes: int | None = None, header_checksum: str | None = None) -> None:
        self.path = os.fspath(path)
        try:
            fd = open_regular_fd(path)
        except (FileNotFoundError, NotADirectoryError):
            raise ShardNotFoundError(
                f"file {self.path!r} does not exist, but the manifest names it. Restore it, or rebuild indexes from "
                "their shards: trajload verify --rebuild-index, or trajload.shards.rebuild.rebuild_index(folder)."
            ) from None
        except OSError as err:
            raise ShardNotFoundError(f"file {self.path!r} cannot be opened: {err.strerror}. Restore it.") from err
        try:
            size = os.fstat(fd).st_size
            if is_lfs_pointer(os.pread(fd, 256, 0)):
                raise ShardCorruptError(f"file {self.path!r} {LFS_ADVICE}.")
            if num_bytes is not None and size != num_bytes:
                what = "is truncated" if size < num_bytes else "has grown"
                raise ShardCorruptError(
                    f"file {self.path!r} {what}: got {size} bytes, expected {num_bytes}. Restore it, or rebuild it "
                    "from its shard: trajload.shards.rebuild.rebuild_index(folder)."
                )
            if size < 8:
                raise self._bad(f"got {size} bytes, expected at least 8")
            self._map = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        self._parse_header(size, header_checksum)

    def _bad(self, what: str) -> ShardCorruptError:
        return ShardCorruptError(
            f"file {self.path!r} is damaged: {what}. Restore it, or rebuild it from its shard: "
            "trajload.shards.rebuild.rebuild_index(folder)."
        )

    def _parse_header(self, size: int, header_checksum: str | None) -> None:
        header_bytes = int.from_bytes(self._map[:8], "little")
        if header_bytes > min(size - 8, _MAX_HEADER_BYTES):
            raise self._bad(
                f"got a header of {header_bytes} bytes, expected at most {min(size - 8, _MAX_HEADER_BYTES)}"
            )
        raw = self._map[: 8 + header_bytes]
        self.header_checksum = hex64(xxhash.xxh3_64_intdigest(raw))
        if header_checksum is not None and self.header_checksum != header_checksum:
            raise self._bad(f"got header checksum {self.header_checksum}, expected {header_checksum}")
        data_bytes = size - 8 - header_bytes
        try:
            header = json.loads(raw[8:])
            self.metadata: dict[str, str] = header.pop("__metadata__")
            self._checksums: dict[str, str] = json.loads(self.metadata["checksums"])
            self._places: dict[str, tuple[np.dtype[Any], int, int]] = {}
            for name, place in header.items():
                dtype = _DTYPES[place["dtype"]]
                (count,) = place["shape"]
                begin, end = place["data_offsets"]
                if not (0 <= begin <= end <= data_bytes and end - begin == count * dtype.itemsize):
                    raise ValueError(f"column {name!r} lies at [{begin}, {end}) of {data_bytes} bytes")
                self._places[name] = (dtype, count, 8 + header_bytes + begin)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
            raise self._bad(f"its header is unusable ({err})") from err
        self._ready: dict[str, NDArray] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._places)

    @property
    def shapes(self) -> dict[str, tuple[np.dtype[Any], int]]:
        """Dtype and length of each column, from the header alone."""
        return {name: (dtype, count) for name, (dtype, count, _) in self._places.items()}

    def column(self, name: str) -> NDArray:
        """Return column `name` as a view of the mapped file.

        Raises:
            ShardCorruptError: There is no such column, or its bytes do not have their checksum.
        """
        ready = self._ready.get(name)
        if ready is not None:
            return ready
        try:
            dtype, count, offset = self._places[name]
            expected = self._checksums[name]
        except KeyError:
            raise self._bad(f"it lacks column {name!r}") from None
        array = np.frombuffer(self._map, dtype=dtype, count=count, offset=offset) if count else np.empty(0, dtype)
        actual = hex64(xxhash.xxh3_64_intdigest(array.data.cast("B") if count else b""))
        if actual != expected:
            raise self._bad(f"got checksum {actual} for column {name!r}, expected {expected}")
        self._ready[name] = array
        return array
