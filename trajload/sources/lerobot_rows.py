"""Row readers of a LeRobot episode: numbers, text, task strings and embedded pictures out of its parquet file."""

# Shapes: N rows asked for

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trajload.errors import SourceError, WindowError, at
from trajload.sources.parquet import ParquetTables
from trajload.sources.parquet_columns import with_row_shape
from trajload.spec import StreamSpec
from trajload.storage.local import check_inside
from trajload.storage.regular import open_regular
from trajload.types import Int64Array, NDArray

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
        values = self._read(rows)
        for value in values:
            if value is not None and not isinstance(value, str):
                with at(shard=self.file, stream=self.column):
                    raise SourceError(
                        "the column holds values that are no strings here, but strings in the first data file. Restore the "
                        "file, or convert the column to one type."
                    )
        return ["" if value is None else value for value in values]


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

    def read_rows(self, rows: Int64Array) -> list[bytes]:
        """Return the pictures as they are stored, one file's bytes each; decoding is the decoder's."""
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
                with open_regular(Path(self.tables.root, check_inside(path))) as handle:
                    return handle.read()
            except OSError as err:
                raise SourceError(
                    f"picture {path!r} cannot be read: {err.strerror}, but the column names it. Restore it."
                ) from err
