"""Statistics for normalisation: those a dataset stores, or a pass over its rows where it stores none."""

# Shapes: N rows, D signal size

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from trajload.decode import DecodeContext, decode_rows, plan_reads, row_shape
from trajload.errors import ConfigError, at
from trajload.shards.stats import StreamStats, has_stats
from trajload.sources.base import Dataset
from trajload.spec import default_request

__all__ = ["measure_stats", "stored_stats"]

_ROWS_AT_ONCE = 65_536


def stored_stats(dataset: Dataset, stream: str, needed: Collection[str]) -> Mapping[str, Any] | None:
    """Return the statistics a dataset stores for a stream, or None where some of `needed` are absent or misshapen."""
    found = dataset.stats().get(stream)
    if not isinstance(found, Mapping):
        return None
    size = int(np.prod(dataset.spec(stream).shape, dtype=np.int64))
    for name in needed:
        values = np.asarray(found.get(name), dtype=object).reshape(-1).tolist()
        if len(values) != size or not all(v is None or isinstance(v, (int, float)) for v in values):
            return None
        if found.get(name) is None and found.get("count") is None:
            return None
    return found


def measure_stats(dataset: Dataset, streams: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return count, mean, std, min, max, q01, q99 of numeric streams, from one pass over all their rows.

    Reads nothing else, holds a bounded number of rows, and gives the same numbers on every run: episodes are taken
    in order, and quantiles are of the rows with the lowest hashes of (episode key, row).

    Raises:
        ConfigError: A stream of pictures or text, or of too many elements.
        TrajloadError: Rows cannot be read; located.
    """
    out: dict[str, dict[str, Any]] = {}
    context = DecodeContext()
    try:
        for stream in streams:
            spec = dataset.spec(stream)
            if not has_stats(spec):
                raise ConfigError(
                    f"stream {stream!r} has no statistics: got {spec.dtype} {spec.shape}, expected a signal of numbers."
                )
            request = default_request(spec)
            shape, dtype = row_shape(spec, request)
            stats = StreamStats(spec.shape)
            for episode in range(dataset.num_episodes):
                key = dataset.episode_key(episode)
                with at(dataset=dataset.name, episode=key, stream=stream):
                    track = dataset.track(episode, stream)
                    if track is None or track.num_rows == 0:
                        continue
                    # Whole episodes where they fit: hashes count rows from the episode's start.
                    parts = []
                    for first in range(0, track.num_rows, _ROWS_AT_ONCE):
                        rows_N = np.arange(first, min(first + _ROWS_AT_ONCE, track.num_rows), dtype=np.int64)
                        values = np.zeros((len(rows_N), *shape), dtype=dtype)
                        with at(shard=track.file):
                            blobs = [dataset.store.read(where) for where in plan_reads(track, rows_N)]
                            decode_rows(
                                track, rows_N, blobs, values,
                                spec=spec, request=request, store=dataset.store, context=context,
                            )  # fmt: skip
                        parts.append(values)
                    stats.add(key, np.concatenate(parts))
            out[stream] = stats.to_json()
    finally:
        context.close()
    return out
