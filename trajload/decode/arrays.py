"""Signals and depth arrays: raw rows, zstd chunks, and rows a foreign source hands out."""

# Shapes: T rows asked for, K chunks

from __future__ import annotations

import numpy as np
import xxhash

from trajload.decode.context import DecodeContext
from trajload.decode.plan import Blobs
from trajload.errors import DecodeError, ShardCorruptError
from trajload.refs import ArrayTrack, ByteRange, ChunkTrack, TableTrack
from trajload.storage import ByteStore
from trajload.types import Int64Array, NDArray

__all__ = ["check_bytes", "decode_array", "decode_chunks", "decode_table"]


def check_bytes(what: str, file: str, offset: int, data: bytes | memoryview, checksum: int) -> None:
    """Raise ShardCorruptError unless `data` has the xxh3_64 that the index promises."""
    got = xxhash.xxh3_64_intdigest(data)
    if got != int(checksum):
        raise ShardCorruptError(
            f"{what} at bytes [{offset}, {offset + len(data)}) of {file!r} is damaged: got checksum {got:016x}, "
            f"expected {int(checksum):016x}. Restore the file from its source; 'trajload verify' lists all damage."
        )


def _view_rows(out: NDArray, row_shape: tuple[int, ...], dtype: np.dtype, what: str) -> NDArray:
    """Return `out` seen as (T, *row_shape): channel-first pictures of one channel are the same memory."""
    if out.dtype != dtype:
        raise DecodeError(f"{what} holds {dtype} values, expected {out.dtype} by the stream's spec.")
    wanted = out.shape[1:]
    if wanted != row_shape:
        raise DecodeError(f"{what} holds rows of shape {row_shape}, expected {wanted} by the stream's spec.")
    return out


def decode_array(
    track: ArrayTrack,
    rows: Int64Array,
    ranges: list[ByteRange],
    blobs: list[bytes],
    out: NDArray,
    *,
    store: ByteStore,
    context: DecodeContext,
) -> None:
    """Copy raw rows into `out`; a run of neighbouring rows is one copy."""
    target = _view_rows(out, track.row_shape, track.dtype, f"array at byte {track.offset} of {track.file!r}")
    if track.checksum is not None and not context.is_verified(store.root, track.file, track.offset):
        size = track.num_rows * track.row_bytes
        check_bytes(
            "array", track.file, track.offset, store.read(ByteRange(track.file, track.offset, size)), track.checksum
        )
        context.mark_verified(store.root, track.file, track.offset)
    if track.row_bytes == 0:
        return
    source = Blobs(ranges, blobs)
    if len(ranges) == 1:
        first, offset = divmod(ranges[0].offset - track.offset, track.row_bytes)
        if offset == 0:
            values = np.frombuffer(blobs[0], dtype=track.dtype).reshape(-1, *track.row_shape)
            # a gather writes straight into the batch; the run that most windows are is a plain copy
            is_run = len(values) == len(rows) and bool((rows[1:] > rows[:-1]).all())
            target[...] = values if is_run else values[rows - first]
            return
    for i, row in enumerate(rows.tolist()):
        data = source.view(track.offset + row * track.row_bytes, track.row_bytes)
        target[i] = np.frombuffer(data, dtype=track.dtype).reshape(track.row_shape)


def decode_chunks(
    track: ChunkTrack,
    rows: Int64Array,
    ranges: list[ByteRange],
    blobs: list[bytes],
    out: NDArray,
    *,
    context: DecodeContext,
) -> None:
    """Decompress each chunk once and copy the rows asked for."""
    target = _view_rows(out, track.row_shape, track.dtype, f"chunked array of {track.file!r}")
    source = Blobs(ranges, blobs)
    chunk_T = rows // track.rows_per_chunk
    for k in np.unique(chunk_T).tolist():
        offset, size = int(track.offset_K[k]), int(track.size_K[k])
        data = source.view(offset, size)
        check_bytes(f"chunk {k}", track.file, offset, data, int(track.checksum_K[k]))
        num_rows = min(track.rows_per_chunk, track.num_rows - k * track.rows_per_chunk)
        where = np.flatnonzero(chunk_T == k)
        wanted = rows[where] - k * track.rows_per_chunk
        is_run = bool((np.diff(where) == 1).all() and (np.diff(wanted) == 1).all())
        first = int(where[0])
        what = f"chunk {k} of {track.file!r}"
        if is_run and len(wanted) == num_rows:
            # all of it in order, as most windows of pictures want it: no copy on the way to the batch
            _inflate(data, target[first : first + num_rows], what, context)
            continue
        values = context.scratch("chunk", (num_rows, *track.row_shape), track.dtype)
        _inflate(data, values, what, context)
        if is_run:
            start = int(wanted[0])
            target[first : first + len(wanted)] = values[start : start + len(wanted)]
        else:
            target[where] = values[wanted]


def _inflate(data: memoryview, out: NDArray, what: str, context: DecodeContext) -> None:
    """Decompress one zstd frame into `out`, C-contiguous, which it must fill exactly."""
    import zstandard

    space = out.reshape(-1).view(np.uint8).data
    try:
        with context.zstd().stream_reader(data) as reader:
            size = reader.readinto(space) if len(space) else 0
            # `out` bounds the memory a hostile frame can ask for; one more byte tells that it holds more
            size += len(reader.read(1))
    except zstandard.ZstdError as err:
        raise DecodeError(
            f"{what} is not the promised zstd frame: {err}; expected {len(out)} rows of {len(space) // len(out)} bytes."
        ) from err
    if size != len(space):
        raise DecodeError(
            f"{what} holds {size if size < len(space) else f'more than {len(space)}'} bytes, expected {len(out)} rows of {len(space) // len(out)} bytes."
        )


def decode_table(track: TableTrack, rows: Int64Array, out: NDArray) -> None:
    """Copy what the source's reader returns, after checking its shape and that no value changes in the cast."""
    values = np.asarray(track.reader.read_rows(rows))
    if values.shape != out.shape:
        raise DecodeError(
            f"table {track.file!r} gave rows of shape {values.shape[1:]} x {len(values) if values.ndim else 0}, expected {out.shape[1:]} x {len(rows)}."
        )
    if not np.can_cast(values.dtype, out.dtype, casting="same_kind"):
        raise DecodeError(
            f"table {track.file!r} gave {values.dtype} values, expected {out.dtype} by the stream's spec."
        )
    out[...] = values
