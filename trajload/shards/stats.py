"""Per-stream statistics, gathered while episodes are written, and the row sample that keeps them mergeable.

Count, mean, standard deviation, minimum and maximum are of all rows. Quantiles are of a sample: the rows with
the lowest hashes of (episode key, row), all rows as long as they are few. The sample does not depend on the order of
episodes, and two samples merge into that of both, so that appending needs no second look at old data.
"""

# Shapes: N rows, D elements of a row, S rows of the sample

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from trajload.errors import ShardCorruptError
from trajload.manifest import canonical_json
from trajload.shards.columns import ColumnFile, columns_to_parts
from trajload.spec import StreamSpec
from trajload.types import NDArray, PathLikeStr, UInt64Array

__all__ = ["DatasetStats", "StreamStats", "has_stats"]

_MAX_ELEMENTS = 4096
_SAMPLE_ROWS = 16_384
_SAMPLE_BYTES = 16 << 20
_FLUSH_BYTES = 4 << 20
_STATE = ("count", "num_finite", "mean", "m2", "min", "max")


def has_stats(spec: StreamSpec) -> bool:
    """Return whether a stream gets statistics: numeric rows of at most 4096 elements, not pictures or text."""
    return not spec.is_picture and not spec.is_text and int(np.prod(spec.shape, dtype=np.int64)) <= _MAX_ELEMENTS


def row_hashes(keys: Sequence[str], num_rows: Sequence[int]) -> UInt64Array:
    """Return a 64-bit hash for each row of some episodes: SplitMix64 over xxh3_64 of the key plus the row."""
    key_hashes = np.array([xxhash.xxh3_64_intdigest(key.encode("utf-8")) for key in keys], dtype=np.uint64)
    rows: UInt64Array = np.concatenate([np.arange(1, n + 1, dtype=np.uint64) for n in num_rows])
    state: UInt64Array = np.repeat(key_hashes, num_rows) + rows * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


class StreamStats:
    """Running statistics of one stream; not-finite values are counted and left out of all else."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        size = int(np.prod(shape, dtype=np.int64))
        self._max_sample = max(256, min(_SAMPLE_ROWS, _SAMPLE_BYTES // (8 * size)))
        self.count = 0
        self.num_finite = np.zeros(size, np.int64)
        self.mean = np.zeros(size)
        self.m2 = np.zeros(size)
        self.min = np.full(size, np.inf)
        self.max = np.full(size, -np.inf)
        self.sample = np.empty((0, size))
        self.sample_hash: UInt64Array = np.empty(0, np.uint64)
        self._rows: list[NDArray] = []
        self._keys: list[str] = []
        self._buffered = 0

    def add(self, key: str, rows: NDArray) -> None:
        """Take the rows (N, *shape) of an episode; they are copied."""
        self._rows.append(np.array(rows, dtype=np.float64).reshape(len(rows), -1))
        self._keys.append(key)
        self._buffered += self._rows[-1].nbytes
        if self._buffered >= _FLUSH_BYTES:
            self.flush()

    @property
    def num_rows(self) -> int:
        """Rows taken so far, those not yet in the totals included."""
        return self.count + sum(map(len, self._rows))

    def flush(self) -> None:
        """Take buffered rows into the totals."""
        if not self._rows:
            return
        rows_ND = np.concatenate(self._rows)
        hashes_N = row_hashes(self._keys, [len(rows) for rows in self._rows])
        self._rows, self._keys, self._buffered = [], [], 0
        self.count += len(rows_ND)
        finite_ND = np.isfinite(rows_ND)
        count_D = finite_ND.sum(axis=0)
        known_ND = np.where(finite_ND, rows_ND, 0.0)
        # Values near the end of float64 may overflow when summed or squared; what comes out then is told as null.
        with np.errstate(over="ignore", invalid="ignore"):
            mean_D = known_ND.sum(axis=0) / np.maximum(count_D, 1)
            m2_D = np.where(finite_ND, (known_ND - mean_D) ** 2, 0.0).sum(axis=0)
            self._merge_moments(count_D, mean_D, m2_D)
        self.min = np.minimum(self.min, np.where(finite_ND, rows_ND, np.inf).min(axis=0))
        self.max = np.maximum(self.max, np.where(finite_ND, rows_ND, -np.inf).max(axis=0))
        self._merge_sample(rows_ND, hashes_N)

    def _merge_moments(self, count_D: NDArray, mean_D: NDArray, m2_D: NDArray) -> None:
        """Combine means and squared deviations of two sets of rows (Chan, Golub and LeVeque 1983)."""
        total_D = self.num_finite + count_D
        delta_D = mean_D - self.mean
        weight_D = count_D / np.maximum(total_D, 1)
        self.mean = self.mean + delta_D * weight_D
        self.m2 = self.m2 + m2_D + delta_D**2 * self.num_finite * weight_D
        self.num_finite = total_D

    def _merge_sample(self, rows_SD: NDArray, hashes_S: UInt64Array) -> None:
        """Keep the rows with the lowest hashes, in the order of their hashes."""
        hashes = np.concatenate([self.sample_hash, hashes_S])
        order = np.argsort(hashes, kind="stable")[: self._max_sample]
        self.sample = np.concatenate([self.sample, rows_SD])[order]
        self.sample_hash = hashes[order]

    def to_json(self) -> dict[str, Any]:
        """Return what stands in `stats.json`: null where a component never was finite, or its sum is not."""
        self.flush()
        std_D = np.sqrt(self.m2 / np.maximum(self.num_finite, 1))
        with np.errstate(over="ignore", invalid="ignore"):
            q01_D, q99_D = self._quantiles()
        known = self.num_finite > 0
        out: dict[str, Any] = {"count": self.count}
        for name, values in (
            ("mean", self.mean),
            ("std", std_D),
            ("min", self.min),
            ("max", self.max),
            ("q01", q01_D),
            ("q99", q99_D),
        ):
            out[name] = self._nested(
                [float(v) if ok else None for v, ok in zip(values, known & np.isfinite(values), strict=True)]
            )
        out["num_not_finite"] = self._nested([int(n) for n in self.count - self.num_finite])
        out["num_quantile_rows"] = len(self.sample_hash)
        return out

    def _quantiles(self) -> tuple[NDArray, NDArray]:
        """Return the 1 % and 99 % quantiles of the sample, linearly interpolated, of finite values only."""
        low, high = np.zeros(len(self.mean)), np.zeros(len(self.mean))
        for d in range(len(self.mean)):
            values = self.sample[:, d]
            values = values[np.isfinite(values)]
            if len(values):
                low[d], high[d] = np.quantile(values, [0.01, 0.99])
        return low, high

    def _nested(self, flat: list[Any]) -> Any:
        if not self.shape:
            return flat[0]
        values = np.empty(len(flat), dtype=object)
        values[:] = flat
        return values.reshape(self.shape).tolist()


class DatasetStats:
    """Statistics of all streams that have them."""

    def __init__(self, streams: Mapping[str, StreamSpec]) -> None:
        self._streams = {name: StreamStats(spec.shape) for name, spec in streams.items() if has_stats(spec)}

    def add(self, stream: str, key: str, rows: NDArray) -> None:
        """Take the rows of one stream in one episode."""
        if stream in self._streams:
            self._streams[stream].add(key, rows)

    def to_json(self) -> bytes:
        """Return the bytes of `stats.json`."""
        return canonical_json(
            {
                "format_version": 1,
                "streams": {name: stats.to_json() for name, stats in self._streams.items() if stats.num_rows},
            }
        )

    def sketch(self) -> bytes:
        """Return the bytes of the sketch: what `load_sketch` needs to go on counting."""
        columns: dict[str, NDArray] = {}
        for i, stats in enumerate(self._streams.values()):
            stats.flush()
            for name in _STATE:
                value = np.atleast_1d(np.asarray(getattr(stats, name)))
                columns[f"{i}.{name}"] = value.view(np.int64) if value.dtype.kind == "f" else value.astype(np.int64)
            columns[f"{i}.sample"] = np.ascontiguousarray(stats.sample).reshape(-1).view(np.int64)
            columns[f"{i}.sample_hash"] = stats.sample_hash
        names = json.dumps(list(self._streams), ensure_ascii=False)
        return b"".join(columns_to_parts(columns, {"format": "trajload-sketch", "streams": names}))

    def load_sketch(self, path: PathLikeStr) -> None:
        """Go on from the sketch at `path`.

        Raises:
            ShardCorruptError, ShardNotFoundError: The file is absent, damaged, or of other streams.
        """
        file = ColumnFile(Path(path))
        if json.loads(file.metadata.get("streams", "[]")) != list(self._streams):
            raise ShardCorruptError(f"file {str(path)!r} is the sketch of other streams.")
        for i, stats in enumerate(self._streams.values()):
            stats.count = int(file.column(f"{i}.count")[0])
            stats.num_finite = np.array(file.column(f"{i}.num_finite"))
            for name in ("mean", "m2", "min", "max"):
                setattr(stats, name, np.array(file.column(f"{i}.{name}")).view(np.float64))
            stats.sample = np.array(file.column(f"{i}.sample")).view(np.float64).reshape(-1, len(stats.mean))
            stats.sample_hash = np.array(file.column(f"{i}.sample_hash"))
