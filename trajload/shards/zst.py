"""Arrays as zstd frames: the first holds the npy header, each further one a chunk of rows.

Decompressed one after the other they are a plain npy file, so `zstd -d` needs to know nothing of this library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
import zstandard

from trajload.errors import ShardCorruptError
from trajload.shards.npy import npy_header
from trajload.types import Int64Array, NDArray, UInt64Array

__all__ = ["ChunkDetail", "compress_rows", "frame_sizes", "rows_per_chunk_of"]

_LEVEL = 3
_CHUNK_BYTES = 256 * 1024
_MAGIC = 0xFD2FB528


@dataclass(frozen=True, slots=True, eq=False)
class ChunkDetail:
    """Where the chunks of one array stand inside its member."""

    rows_per_chunk: int
    offset_K: Int64Array
    """From the start of the member."""
    size_K: Int64Array
    checksum_K: UInt64Array


def rows_per_chunk_of(num_rows: int, row_bytes: int) -> int:
    """Return how many rows share a chunk: about 256 KiB of them, so that a window reads little it does not need."""
    return max(1, min(num_rows, _CHUNK_BYTES // max(1, row_bytes)))


def compress_rows(rows: NDArray) -> tuple[bytes, ChunkDetail]:
    """Return the npy.zst member of C-contiguous `rows` (N, ...) and where its chunks stand."""
    num_rows = len(rows)
    per_chunk = rows_per_chunk_of(num_rows, rows.nbytes // num_rows)
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
    head = compressor.compress(npy_header(rows.dtype, rows.shape))
    chunks = [compressor.compress(rows[i : i + per_chunk].tobytes()) for i in range(0, num_rows, per_chunk)]
    size_K = np.array([len(chunk) for chunk in chunks], dtype=np.int64)
    detail = ChunkDetail(
        rows_per_chunk=per_chunk,
        offset_K=len(head) + np.cumsum(size_K) - size_K,
        size_K=size_K,
        checksum_K=np.array([xxhash.xxh3_64_intdigest(chunk) for chunk in chunks], dtype=np.uint64),
    )
    return head + b"".join(chunks), detail


def frame_sizes(data: Any) -> Int64Array:
    """Return the size in bytes of each zstd frame of `data`, by its block headers, without decompressing.

    Raises:
        ShardCorruptError: `data` is not a run of whole zstd frames.
    """
    sizes = []
    pos = 0
    while pos < len(data):
        start = pos
        if int.from_bytes(data[pos : pos + 4], "little") != _MAGIC or pos + 5 > len(data):
            raise ShardCorruptError(f"byte {pos} of {len(data)} does not begin a zstd frame. Run 'trajload verify'.")
        descriptor = data[pos + 4]
        is_single_segment = descriptor >> 5 & 1
        content_size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
        pos += 5 + (1 - is_single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
        is_last = False
        while not is_last:
            block = int.from_bytes(data[pos : pos + 3], "little")
            is_last = bool(block & 1)
            pos += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
            if pos > len(data):
                raise ShardCorruptError(
                    f"zstd frame at byte {start} is truncated: got {len(data)} bytes, expected at least {pos}."
                )
        pos += 4 * (descriptor >> 2 & 1)
        sizes.append(pos - start)
    return np.array(sizes, dtype=np.int64)
