"""Any rows of one stream of one episode, read plainly: for looking, checking and converting, not for training."""

# Shapes: N rows asked for, T steps

from __future__ import annotations

from typing import Any

import numpy as np

from trajload.decode import DecodeContext, decode_rows, plan_reads, read_text, row_shape
from trajload.errors import ConfigError, WindowError, at
from trajload.sources.base import Dataset
from trajload.spec import StreamRequest, check_request, default_request
from trajload.types import Int64Array, NDArray

__all__ = ["nearest_rows", "read_rows", "read_value"]


def read_rows(
    dataset: Dataset,
    episode: int,
    stream: str,
    rows_N: Int64Array | list[int],
    *,
    request: StreamRequest | None = None,
    context: DecodeContext | None = None,
) -> NDArray | None:
    """Return the given rows of a stream, decoded, or None where the episode lacks the stream.

    Args:
        dataset: The opened dataset.
        episode: Position of the episode.
        stream: A stream that holds numbers or pictures; see `read_value` for text.
        rows_N: Row numbers (N,) inside the track, in any order. For a stepwise stream they are steps.
        request: Wanted size of pictures; None keeps the stored size.
        context: Decoders to reuse; None makes and closes its own.

    Returns:
        (N, C, H, W) for pictures, (N, *shape) for signals, in the stream's dtype. A fresh array.

    Raises:
        WindowError: A row outside the track.
        TrajloadError: The bytes cannot be read or decoded; located.
    """
    spec = dataset.spec(stream)
    if spec.is_text:
        raise ConfigError(f"stream {stream!r} holds {spec.dtype!r}, not rows of numbers: use read_value.")
    request = check_request(spec, request or default_request(spec))
    rows_N = np.asarray(rows_N, dtype=np.int64)
    with at(dataset=dataset.name, episode=dataset.episode_key(episode), stream=stream):
        track = dataset.track(episode, stream)
        if track is None:
            return None
        if rows_N.size and not 0 <= int(rows_N.min()) <= int(rows_N.max()) < track.num_rows:
            raise WindowError(
                f"rows [{int(rows_N.min())}, {int(rows_N.max()) + 1}) do not exist: the stream has {track.num_rows} rows here."
            )
        shape, dtype = row_shape(spec, request)
        out = np.zeros((len(rows_N), *shape), dtype=dtype)
        if rows_N.size == 0:
            return out
        own = context is None
        context = context or DecodeContext()
        try:
            with at(shard=track.file):
                blobs = [dataset.store.read(where) for where in plan_reads(track, rows_N)]
                decode_rows(track, rows_N, blobs, out, spec=spec, request=request, store=dataset.store, context=context)
        finally:
            if own:
                context.close()
        return out


def read_value(
    dataset: Dataset, episode: int, stream: str, row: int = 0, *, context: DecodeContext | None = None
) -> Any:
    """Return one text or JSON value of an episode, or None where the episode lacks the stream.

    A track with one value for the whole episode gives it for any `row`.
    """
    spec = dataset.spec(stream)
    if not spec.is_text:
        raise ConfigError(f"stream {stream!r} holds {spec.dtype!r}, not text: use read_rows.")
    with at(dataset=dataset.name, episode=dataset.episode_key(episode), stream=stream):
        track = dataset.track(episode, stream)
        if track is None or track.num_rows == 0:
            return None
        row = 0 if track.num_rows == 1 else row
        own = context is None
        context = context or DecodeContext()
        try:
            with at(shard=track.file):
                blobs = [dataset.store.read(where) for where in plan_reads(track, np.array([row], dtype=np.int64))]
                return read_text(track, row, blobs, spec=spec, context=context)
        finally:
            if own:
                context.close()


def nearest_rows(dataset: Dataset, episode: int, stream: str, steps_T: Int64Array) -> Int64Array | None:
    """Return the row of a stream for each step (T,): the step itself, or the clocked row nearest in time.

    None where the episode lacks the stream or the stream has no rows. Steps lie inside the episode; of two rows at
    the same distance the earlier is taken.
    """
    track = dataset.track(episode, stream)
    if track is None or track.num_rows == 0:
        return None
    if dataset.spec(stream).clock == "stepwise":
        return np.asarray(steps_T, dtype=np.int64)
    times_N = dataset.stream_times_ns(episode, stream)
    times_T = dataset.step_times_ns(episode, np.asarray(steps_T, dtype=np.int64))
    after_T = np.clip(np.searchsorted(times_N, times_T), 0, len(times_N) - 1)
    before_T = np.maximum(after_T - 1, 0)
    is_before_T = np.abs(times_T - times_N[before_T]) <= np.abs(times_N[after_T] - times_T)
    return np.where(is_before_T, before_T, after_T).astype(np.int64)
