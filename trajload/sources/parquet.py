"""Parquet files read by row, through a bounded cache of decoded columns.

One `ParquetTables` serves a whole dataset: it decodes a column of a row group once, however many threads ask for it,
keeps the most recently used within a byte budget, and holds no file open between calls.
"""

# Shapes: N rows asked for, G row groups

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trajload.errors import MissingDependencyError, ShardNotFoundError, SourceError, at
from trajload.sources.parquet_columns import column_type, to_numeric
from trajload.storage.local import check_inside
from trajload.storage.locks import ForkLock
from trajload.storage.regular import check_regular, open_regular
from trajload.types import Int64Array, NDArray

__all__ = ["DEFAULT_CACHE_BYTES", "ParquetFooter", "ParquetTables", "open_parquet", "pyarrow_parquet"]

DEFAULT_CACHE_BYTES = 512 * 2**20
_MAX_FOOTERS = 1024
_NUM_LOCKS = 64


def pyarrow_parquet() -> Any:
    """Return the module `pyarrow.parquet`, or raise MissingDependencyError with the cure."""
    try:
        import pyarrow.parquet as pq
    except ImportError as err:
        raise MissingDependencyError(
            "LeRobot datasets are read with pyarrow, which is not installed. Run: pip install 'trajload[lerobot]'"
        ) from err
    return pq


def open_parquet(path: Path, file: str) -> Any:
    """Return `pyarrow.parquet.ParquetFile` of `path`; errors name `file` and what its bytes look like."""
    pq = pyarrow_parquet()
    try:
        check_regular(path, path.stat())
        handle = pq.ParquetFile(path, memory_map=False)
        names = handle.schema_arrow.names
    except FileNotFoundError:
        raise ShardNotFoundError(
            f"file {str(path)!r} does not exist, but the dataset names it. Restore it, or open with missing='skip' (--skip-missing on the command line)."
        ) from None
    except Exception as err:  # pyarrow raises ArrowInvalid, OSError and others for damaged footers and schemas
        raise SourceError(
            f"file {file!r} is not readable as parquet: {describe_bytes(path)}. Fetch or restore the file. ({_line(err)})"
        ) from err
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        handle.close()
        raise SourceError(
            f"file {file!r} has {names.count(twice)} columns named {twice!r}: expected 1. Drop all but one."
        )
    return handle


def describe_bytes(path: Path) -> str:
    """Return in words what a file that should have been something else looks like."""
    try:
        size = path.stat().st_size
        with open_regular(path) as f:
            head = f.read(64)
            f.seek(max(0, size - 4))
            tail = f.read(4)
    except OSError as err:
        return f"cannot be read ({err.strerror})"
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the data; run 'git lfs pull'"
    if size == 0:
        return "it is empty (0 bytes)"
    if head[:4] == b"PAR1" and tail != b"PAR1":
        return f"its {size} bytes start as parquet but end without the footer, so it is truncated"
    return f"its {size} bytes start with {head[:8]!r}"


def _line(err: BaseException) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0][:200]


@dataclass(frozen=True, slots=True, eq=False)
class ParquetFooter:
    """What the footer of a parquet file says."""

    num_rows: int
    group_start_G: Int64Array
    """First row of each row group, and the number of rows at the end (G + 1,)."""
    columns: frozenset[str]


class ParquetTables:
    """Rows of the parquet files of one dataset folder. Thread-safe, picklable (the cache stays behind).

    Args:
        root: Dataset folder; files are named relative to it.
        cache_bytes: Budget of decoded columns. One row group of the columns in use is always kept.
    """

    def __init__(self, root: str, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.root = root
        self.cache_bytes = cache_bytes
        self.num_decodes = 0
        """Row groups decoded so far, for tests and statistics."""
        self._columns: OrderedDict[tuple[str, int, str], tuple[Any, int]] = OrderedDict()
        self._footers: OrderedDict[str, ParquetFooter] = OrderedDict()
        self._wanted: set[str] = set()
        self._used = 0
        self._lock = ForkLock()
        self._file_locks = [ForkLock() for _ in range(_NUM_LOCKS)]

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "cache_bytes": self.cache_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def used_bytes(self) -> int:
        """Bytes of decoded columns held now."""
        return self._used

    def footer(self, file: str) -> ParquetFooter:
        """Return the footer of `file`, read once and remembered."""
        with self._lock:
            known = self._footers.get(file)
            if known is not None:
                self._footers.move_to_end(file)
                return known
        with at(shard=file), open_parquet(Path(self.root, check_inside(file)), file) as handle:
            meta = handle.metadata
            starts = np.zeros(meta.num_row_groups + 1, dtype=np.int64)
            np.cumsum([meta.row_group(g).num_rows for g in range(meta.num_row_groups)], out=starts[1:])
            footer = ParquetFooter(meta.num_rows, starts, frozenset(handle.schema_arrow.names))
        with self._lock:
            self._footers[file] = footer
            while len(self._footers) > _MAX_FOOTERS:
                self._footers.popitem(last=False)
        return footer

    def scan(self, file: str, column: str) -> NDArray:
        """Return a whole numeric column of `file`, read now and not kept."""
        with at(shard=file, stream=column), open_parquet(Path(self.root, check_inside(file)), file) as handle:
            if column not in handle.schema_arrow.names:
                raise SourceError(
                    f"column {column!r} is absent: the file has {', '.join(sorted(handle.schema_arrow.names))}."
                )
            return to_numeric(_guard(lambda: handle.read(columns=[column], use_threads=False)).column(column))

    def rows(self, file: str, column: str, rows_N: Int64Array) -> Any:
        """Return the values of `column` at `rows_N` of `file`: an array (N, ...), or a list for text and images."""
        rows_N = np.asarray(rows_N, dtype=np.int64)
        footer = self.footer(file)
        with at(shard=file):
            if column not in footer.columns:
                raise SourceError(f"column {column!r} is absent: the file has {', '.join(sorted(footer.columns))}.")
            if len(rows_N) and not (rows_N.min() >= 0 and rows_N.max() < footer.num_rows):
                raise SourceError(
                    f"rows [{rows_N.min()}, {rows_N.max() + 1}) are not all there: the file has {footer.num_rows} rows."
                )
            group_N = np.searchsorted(footer.group_start_G, rows_N, side="right") - 1
            groups = np.unique(group_N)
            if len(groups) <= 1:
                group = int(groups[0]) if len(groups) else 0
                if footer.num_rows == 0:
                    return self._empty(file, column)
                return _take(self._column(file, group, column), rows_N - footer.group_start_G[group])
            return self._gather(file, column, rows_N, group_N, groups, footer)

    def _gather(
        self, file: str, column: str, rows_N: Int64Array, group_N: Int64Array, groups: Int64Array, footer: ParquetFooter
    ) -> Any:
        out: Any = None
        for group in groups.tolist():
            where = np.flatnonzero(group_N == group)
            part = _take(self._column(file, group, column), rows_N[where] - footer.group_start_G[group])
            if isinstance(part, list):
                out = [None] * len(rows_N) if out is None else out
                for i, value in zip(where.tolist(), part, strict=True):
                    out[i] = value
                continue
            out = np.empty((len(rows_N), *part.shape[1:]), dtype=part.dtype) if out is None else out
            if part.shape[1:] != out.shape[1:]:
                raise SourceError(
                    f"column {column!r} changes its row shape from {out.shape[1:]} to {part.shape[1:]} in row group {group}."
                )
            out[where] = part
        return out

    def _empty(self, file: str, column: str) -> Any:
        with open_parquet(Path(self.root, file), file) as handle:
            kind = column_type(handle.schema_arrow.field(column).type)
        return np.zeros((0, *(kind.shape or ())), dtype=kind.dtype) if kind.kind == "numeric" else []

    def _column(self, file: str, group: int, column: str) -> Any:
        """Return one decoded column of one row group, decoding it (and its companions) when it is not held."""
        key = (file, group, column)
        with self._lock:
            found = self._columns.get(key)
            if found is not None:
                self._columns.move_to_end(key)
                return found[0]
        with self._file_locks[zlib.crc32(file.encode()) % _NUM_LOCKS]:
            with self._lock:
                found = self._columns.get(key)
                if found is not None:
                    return found[0]
                self._wanted.add(column)
                # A window asks for its streams one after the other: what was ever asked for is decoded together,
                # so that a file is opened once and not once per stream.
                names = [c for c in self._wanted if (file, group, c) not in self._columns]
            names = sorted(c for c in names if c in self.footer(file).columns)
            decoded = self._decode(file, group, names)
            with self._lock:
                for name, value in decoded.items():
                    size = _num_bytes(value)
                    self._columns[(file, group, name)] = (value, size)
                    self._used += size
                while self._used > self.cache_bytes and len(self._columns) > len(decoded):
                    _, (_, size) = self._columns.popitem(last=False)
                    self._used -= size
            return decoded[column]

    def _decode(self, file: str, group: int, names: list[str]) -> dict[str, Any]:
        with open_parquet(Path(self.root, check_inside(file)), file) as handle:
            schema = handle.schema_arrow
            # One thread: decoders call from their own threads, and Arrow's pool does not survive a fork.
            table = _guard(lambda: handle.read_row_group(group, columns=names, use_threads=False))
        self.num_decodes += 1
        out: dict[str, Any] = {}
        for name in names:
            column = table.column(name)
            with at(stream=name):
                numeric = column_type(schema.field(name).type).kind == "numeric"
                out[name] = to_numeric(column) if numeric else column.combine_chunks()
        return out


def _guard(read: Callable[[], Any]) -> Any:
    """Return `read()`; what Arrow raises for damaged pages (many kinds) becomes a SourceError."""
    try:
        return read()
    except Exception as err:
        raise SourceError(
            f"the parquet pages cannot be decoded: the file is damaged. Restore it from its source. ({_line(err)})"
        ) from err


def _take(column: Any, rows_N: Int64Array) -> Any:
    if isinstance(column, np.ndarray):
        num = len(rows_N)
        if num and rows_N[-1] - rows_N[0] == num - 1 and (num == 1 or (np.diff(rows_N) == 1).all()):
            return column[int(rows_N[0]) : int(rows_N[0]) + num]
        return column[rows_N]
    import pyarrow as pa

    return column.take(pa.array(rows_N)).to_pylist()


def _num_bytes(value: NDArray | Any) -> int:
    return int(value.nbytes)
