"""Arrow columns to contiguous NumPy arrays: which shape and dtype a column has, and its values without Python loops.

pyarrow is imported by the caller (`trajload.sources.parquet.pyarrow_parquet`); this file touches arrays it was handed.
"""

# Shapes: N rows, D values of a row (flattened)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trajload.errors import SourceError
from trajload.types import NDArray

__all__ = ["ColumnKind", "ColumnType", "column_type", "to_numeric", "with_row_shape"]

ColumnKind = Literal["numeric", "text", "image", "binary", "other"]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What a parquet column holds, seen from its schema."""

    kind: ColumnKind
    dtype: str
    """NumPy dtype name of a value for numeric columns, else ''."""
    depth: int
    """List levels around a value: 0 scalar, 1 vector, 2 matrix."""
    shape: tuple[int, ...] | None
    """Row shape where the schema fixes it (scalars and fixed-size lists), else None."""
    arrow: str
    """The Arrow type in words, for messages."""


_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Arrow's names of floating types in NumPy's words; those of integers and bool are the same."""


def column_type(field_type: Any) -> ColumnType:
    """Return what a column of Arrow type `field_type` holds."""
    import pyarrow as pa

    inner, shape, fixed, depth = field_type, [], True, 0
    if isinstance(inner, pa.BaseExtensionType):
        inner = inner.storage_type
    while pa.types.is_list(inner) or pa.types.is_large_list(inner) or pa.types.is_fixed_size_list(inner):
        depth += 1
        if pa.types.is_fixed_size_list(inner):
            shape.append(int(inner.list_size))
        else:
            fixed = False
        inner = inner.value_type
    words = str(field_type)
    if pa.types.is_dictionary(inner):
        inner = inner.value_type
    if pa.types.is_boolean(inner) or pa.types.is_integer(inner) or pa.types.is_floating(inner):
        # Not to_pandas_dtype(): several releases of pyarrow import pandas for it.
        dtype = np.dtype(_FLOATS.get(str(inner), str(inner))).name
        return ColumnType("numeric", dtype, depth, tuple(shape) if fixed else None, words)
    if depth == 0 and (pa.types.is_string(inner) or pa.types.is_large_string(inner)):
        return ColumnType("text", "", 0, (), words)
    if depth == 0 and pa.types.is_struct(inner) and inner.get_field_index("bytes") >= 0:
        return ColumnType("image", "", 0, (), words)
    if depth == 0 and (pa.types.is_binary(inner) or pa.types.is_large_binary(inner)):
        return ColumnType("binary", "", 0, (), words)
    return ColumnType("other", "", depth, None, words)


def to_numeric(column: Any) -> NDArray:
    """Return the values of a numeric Arrow column as a read-only array (N, ...).

    Values are viewed, not copied, where Arrow's memory allows it.

    Raises:
        SourceError: A value is null, or rows differ in length.
    """
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # combine_chunks of an empty or unmergeable column
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    num_rows = len(array)
    row_shape: list[int] = []
    while True:
        if array.null_count:
            row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            for n in row_shape:
                row //= max(n, 1)
            raise SourceError(
                f"row {row} holds a null: expected a value in each of {num_rows} rows. Repair or drop the row."
            )
        if pa.types.is_fixed_size_list(array.type):
            row_shape.append(int(array.type.list_size))
        elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            row_shape.append(_common_length(array))
        else:
            break
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False).reshape(num_rows, *row_shape)
    values = np.ascontiguousarray(values)
    values.flags.writeable = False
    return values


def _common_length(array: Any) -> int:
    lengths = np.diff(array.offsets.to_numpy())
    if len(lengths) == 0:
        return 0
    if (lengths != lengths[0]).any():
        bad = int(np.flatnonzero(lengths != lengths[0])[0])
        raise SourceError(
            f"rows differ in length: row 0 has {int(lengths[0])} values, row {bad} has {int(lengths[bad])}. "
            "Ragged signals are not supported."
        )
    return int(lengths[0])


def with_row_shape(values: NDArray, shape: tuple[int, ...], dtype: str) -> NDArray:
    """Return `values` (N, ...) as (N, *shape) of `dtype`, or raise SourceError naming both.

    A leading or trailing 1 is no disagreement: LeRobot writes shape (1,) as a scalar or as a list of one.
    """
    if values.dtype.name != dtype:
        raise SourceError(f"values are {values.dtype.name}, expected {dtype} as in the first data file.")
    if values.shape[1:] == shape:
        return values
    if len(values) == 0 or int(np.prod(values.shape[1:], dtype=np.int64)) == int(np.prod(shape, dtype=np.int64)):
        return values.reshape(len(values), *shape) if len(values) else np.zeros((0, *shape), dtype=dtype)
    raise SourceError(f"rows have shape {values.shape[1:]}, expected {shape} as in the first data file.")
