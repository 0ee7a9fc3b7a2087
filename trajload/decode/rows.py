"""The two doors of decoding: `decode_rows` for everything with a shape, `read_text` for language and JSON."""

# Shapes: T rows asked for, H height, W width, C channels, D signal size

from __future__ import annotations

from typing import Any

import numpy as np

from trajload.decode.arrays import decode_array, decode_chunks, decode_table
from trajload.decode.context import DecodeContext
from trajload.decode.plan import VideoReads, check_rows, plan_reads
from trajload.decode.text import read_table_text, read_text_member
from trajload.errors import ConfigError, DecodeError
from trajload.refs import ArrayTrack, ByteRange, ChunkTrack, ImageTrack, TableTrack, TextTrack, Track, VideoTrack
from trajload.spec import Image, StreamRequest, StreamSpec
from trajload.storage import ByteStore
from trajload.types import Int64Array, Modality, NDArray

__all__ = ["decode_rows", "read_text", "row_shape"]


def row_shape(spec: StreamSpec, request: StreamRequest) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of one delivered row.

    rgb pictures are (3, H, W) uint8 whatever they are stored as; other pictures (depth, masks) are (C, H, W) in their
    stored dtype; H and W are `request.size` where it asks for one. Signals are as stored.

    Raises:
        ConfigError: The stream is text; use `read_text`.
    """
    if spec.is_text:
        raise ConfigError(f"stream {spec.name!r} holds {spec.dtype} values, which have no shape. Use read_text.")
    if not spec.is_picture:
        return spec.shape, np.dtype(spec.dtype)
    height, width, channels = spec.shape
    if isinstance(request, Image) and request.size is not None:
        height, width = request.size
    if spec.modality is Modality.RGB:
        return (3, height, width), np.dtype(np.uint8)
    return (channels, height, width), np.dtype(spec.dtype)


def decode_rows(
    track: Track,
    rows: Int64Array,
    blobs: list[bytes],
    out: NDArray,
    *,
    spec: StreamSpec,
    request: StreamRequest,
    store: ByteStore,
    context: DecodeContext,
    plan: list[ByteRange] | None = None,
) -> None:
    """Write the value of row `rows[i]` to `out[i]`.

    Same arguments, same bytes, whatever `context` was used for before. Each frame, chunk or image is decoded once,
    however often its rows are asked for.

    Args:
        track: Where the rows stand.
        rows: (T,) int, in any order, may repeat.
        blobs: Bytes of `plan_reads(track, rows)`, in that order.
        out: (T, *row_shape(spec, request)), C-contiguous, of that dtype; may be a view of a tensor's memory.
        spec: What the stream is declared to be.
        request: How it is wanted.
        store: Read from only to verify a raw array's checksum the first time this context meets it.
        context: The calling thread's.
        plan: What `plan_reads(track, rows)` gave, where the caller still has it; saves planning again.

    Raises:
        WindowError: A row outside [0, track.num_rows).
        ShardCorruptError: Bytes differ from their checksum, or are too few.
        DecodeError: Bytes are as written but do not give the promised rows.
    """
    if not isinstance(plan, VideoReads) or plan.rows is not rows:
        rows = check_rows(track, rows)
    shape, dtype = row_shape(spec, request)
    if out.shape != (len(rows), *shape) or out.dtype != dtype or not out.flags.c_contiguous:
        raise ConfigError(
            f"out is {out.shape} {out.dtype}{'' if out.flags.c_contiguous else ', not contiguous'}: "
            f"expected C-contiguous {(len(rows), *shape)} {dtype} for {len(rows)} rows of stream {spec.name!r}."
        )
    if rows.size == 0:
        return
    if context.is_blank:
        out.fill(0)
        return
    if isinstance(track, VideoTrack):
        from trajload.decode.video import decode_video

        decode_video(track, rows, blobs, out, spec=spec, context=context, plan=plan)
    elif isinstance(track, ImageTrack):
        from trajload.decode.image import decode_images

        decode_images(track, rows, blobs, out, spec=spec, request=request, context=context)
    elif isinstance(track, ArrayTrack):
        decode_array(track, rows, plan or plan_reads(track, rows), blobs, out, store=store, context=context)
    elif isinstance(track, ChunkTrack):
        decode_chunks(track, rows, plan or plan_reads(track, rows), blobs, out, context=context)
    elif isinstance(track, TableTrack) and spec.is_picture:
        from trajload.decode.image import decode_image_table

        decode_image_table(track, rows, out, spec=spec, request=request, context=context)
    elif isinstance(track, TableTrack):
        decode_table(track, rows, out)
    else:
        raise DecodeError(f"stream {spec.name!r} is declared as {spec.dtype} {spec.shape}, but is stored as text.")


def read_text(track: Track, row: int, blobs: list[bytes], *, spec: StreamSpec, context: DecodeContext) -> Any:
    """Return the text or JSON value of one row.

    A member that holds one value gives it for every row; a JSON list with one value per row gives the row's.

    Args:
        track: A TextTrack or a TableTrack.
        row: Row asked for.
        blobs: Bytes of `plan_reads(track, [row])`.

    Raises:
        WindowError: The row does not exist.
        ShardCorruptError: Bytes differ from their checksum.
        DecodeError: Not UTF-8, not JSON, or not the promised number of values.
    """
    if isinstance(track, TextTrack):
        return read_text_member(track, row, blobs, spec=spec)
    if isinstance(track, TableTrack):
        check_rows(track, np.array([row]))
        return read_table_text(track, row, spec=spec)
    raise ConfigError(f"stream {spec.name!r} is stored as {type(track).__name__}, which is not text. Use decode_rows.")
