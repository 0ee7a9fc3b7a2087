"""Row readers of a LeRobot episode: numbers, text, task strings and embedded pictures out of its parquet file."""

# Shapes: N rows asked for

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trajload.errors import DecodeError, SourceError, WindowError, at
from trajload.sources.parquet import ParquetTables
from trajload.sources.parquet_columns import with_row_shape
from trajload.spec import StreamSpec
from trajload.storage.local import check_inside
from trajload.types import Int64Array, Modality, NDArray

__all__ = ["ImageRows", "NumericRows", "TaskRows", "TextRows"]


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows [first_row, first_row + num_rows) of one column of one parquet file."""

    tables: ParquetTables
    file: str
    column: str
    first_row: int
    num_rows: int

    def _read(self, rows: Int64Array) -> Any:
        rows_N = np.asarray(rows, dtype=np.int64)
        # A shared file goes on with the next episode's rows: the bound is the episode's, not the file's.
        if rows_N.size and not (int(rows_N.min()) >= 0 and int(rows_N.max()) < self.num_rows):
            raise WindowError(
                f"rows [{int(rows_N.min())}, {int(rows_N.max()) + 1}) leave the episode: it has {self.num_rows} steps."
            )
        with at(shard=self.file, stream=self.column):
            return self.tables.rows(self.file, self.column, rows_N + self.first_row)


@dataclass(frozen=True, slots=True, eq=False)
class NumericRows(_Rows):
    """Numbers of a column, shaped (N, *shape). The array may be a read-only view of the cache."""

    shape: tuple[int, ...]
    dtype: str

    def read_rows(self, rows: Int64Array) -> NDArray:
        values = self._read(rows)
        with at(shard=self.file, stream=self.column):
            if not isinstance(values, np.ndarray):
                raise SourceError("the column holds no numbers here, but did in the first data file.")
            return with_row_shape(values, self.shape, self.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class TextRows(_Rows):
    """Strings of a column."""

    def read_rows(self, rows: Int64Array) -> list[str]:
        return ["" if value is None else str(value) for value in self._read(rows)]


@dataclass(frozen=True, slots=True, eq=False)
class TaskRows(_Rows):
    """Strings that a column of indices names in the table of tasks."""

    tasks: Mapping[int, str]

    def read_rows(self, rows: Int64Array) -> list[str]:
        index_N = np.asarray(self._read(rows)).reshape(len(rows))
        try:
            return [self.tasks[i] for i in index_N.tolist()]
        except KeyError as err:
            with at(shard=self.file, stream=self.column):
                raise SourceError(
                    f"{self.column} {err.args[0]!r} is no task: the table of tasks has {len(self.tasks)}, "
                    f"indices {sorted(self.tasks)[:8]}. Restore meta/tasks."
                ) from None


@dataclass(frozen=True, slots=True, eq=False)
class ImageRows(_Rows):
    """Pictures (png or jpg) embedded in the column, or in files it names."""

    spec: StreamSpec

    def read_rows(self, rows: Int64Array) -> NDArray:
        """Return decoded pictures (N, C, H, W) of the spec's dtype, upright; rgb as three channels.

        A row asked for twice is decoded once.
        """
        height, width, channels = self.spec.shape
        out_NCHW = np.empty((len(rows), channels, height, width), dtype=self.spec.dtype)
        unique, which = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        for k, data in enumerate(self.read_encoded(unique)):
            with at(shard=self.file, stream=self.column):
                out_NCHW[which == k] = _decode(data, int(unique[k]), self.spec)
        return out_NCHW

    def read_encoded(self, rows: Int64Array) -> list[bytes]:
        """Return the pictures as they are stored, one file's bytes each."""
        out: list[bytes] = []
        for value in self._read(rows):
            data, path = (value or {}).get("bytes"), (value or {}).get("path")
            if data is None and not path:
                with at(shard=self.file, stream=self.column):
                    raise SourceError("a row holds neither picture bytes nor a path: expected one of them.")
            out.append(data if data is not None else self._read_file(str(path)))
        return out

    def _read_file(self, path: str) -> bytes:
        with at(shard=self.file, stream=self.column):
            try:
                return Path(self.tables.root, check_inside(path)).read_bytes()
            except OSError as err:
                raise SourceError(
                    f"picture {path!r} cannot be read: {err.strerror}, but the column names it. Restore it."
                ) from err


def _decode(data: bytes, row: int, spec: StreamSpec) -> NDArray:
    """Return one picture (C, H, W), checked against its spec."""
    from PIL import Image as Pictures
    from PIL import ImageOps

    try:
        with Pictures.open(io.BytesIO(data), formats=("PNG", "JPEG")) as picture:
            # Before pixels are unpacked, so that a hostile header costs no memory.
            if sorted(picture.size) != sorted(spec.shape[:2]):
                raise DecodeError(
                    f"picture of row {row} is {picture.height} x {picture.width}, expected {spec.shape[0]} x {spec.shape[1]} (H x W)."
                )
            upright = ImageOps.exif_transpose(picture)
            if spec.modality is Modality.RGB and upright.mode.startswith(("I", "F")):
                raise DecodeError(f"picture of row {row} holds {upright.mode!r} values, expected 8-bit colour.")
            array = np.asarray(upright.convert("RGB") if spec.modality is Modality.RGB else upright)
    except DecodeError:
        raise
    except Exception as err:  # Pillow raises whatever its parsers meet in damaged bytes
        raise DecodeError(
            f"picture of row {row} is no whole png or jpg: {err} ({len(data)} bytes that begin with {data[:8]!r}). Restore it."
        ) from err
    array = array[:, :, None] if array.ndim == 2 else array
    wanted = np.dtype(spec.dtype)
    in_range = array.dtype != wanted and array.size and array.min() >= 0 and array.max() <= np.iinfo(wanted).max
    if array.shape != spec.shape or not (array.dtype == wanted or in_range):
        raise DecodeError(f"picture of row {row} is {array.shape} {array.dtype}, expected {spec.shape} {wanted}.")
    return np.moveaxis(array.astype(wanted, copy=False), 2, 0)
