"""Values of one stream, as users give them, into checked arrays and members."""

# Shapes: N rows, H height, W width, C channels

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trajload.errors import ConfigError
from trajload.manifest import canonical_json
from trajload.refs import VideoIndex
from trajload.shards.npy import npy_header
from trajload.shards.records import Buffer, NpyDetail, checksum_of
from trajload.shards.zst import ChunkDetail, compress_rows
from trajload.spec import StreamSpec
from trajload.types import Int64Array, NDArray

__all__ = ["EncodedStream", "check_array", "check_times_ns", "encode_signal", "encode_text"]


@dataclass(frozen=True, slots=True)
class EncodedStream:
    """The bytes of one stream of one episode, before they have names and places."""

    encoding: str
    num_rows: int
    is_whole: bool
    """One value stands for the whole episode (text only)."""
    contents: tuple[tuple[Buffer, ...], ...]
    """One member, or one for each row of pictures; each in parts to be joined."""
    detail: NpyDetail | ChunkDetail | VideoIndex | None
    rows: NDArray | None = None
    """Signals: the checked array, for statistics."""


def _from_python(spec: StreamSpec, value: Any, dtype: np.dtype[Any]) -> NDArray:
    """Return nested Python numbers as `dtype`; they have no width of their own, so floats may become float32."""
    try:
        array = np.asarray(value)
    except ValueError as err:
        raise ConfigError(f"stream {spec.name!r} is not a regular array: {err}.") from err
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"stream {spec.name!r} holds {array.dtype} values: expected numbers, as {spec.dtype}.")
    order = "biuf"
    kind = "i" if array.dtype.kind == "u" else array.dtype.kind
    if order.index(kind) > order.index("i" if dtype.kind == "u" else dtype.kind):
        raise ConfigError(f"stream {spec.name!r} holds {array.dtype} values, which {spec.dtype} cannot keep.")
    if array.size and kind == "i" and dtype.kind in "iu":
        low, high = int(array.min()), int(array.max())
        bounds = np.iinfo(dtype)
        if low < bounds.min or high > bounds.max:
            raise ConfigError(f"stream {spec.name!r} holds values [{low}, {high}], which {spec.dtype} cannot keep.")
    return array.astype(dtype)


def check_array(spec: StreamSpec, value: Any) -> NDArray:
    """Return `value` as a C-contiguous little-endian array (N, *spec.shape) of the stream's dtype.

    Raises:
        ConfigError: Not an array of numbers; another shape; a dtype that does not cast safely; no rows.
    """
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    if isinstance(value, (list, tuple, int, float, bool)) and not _holds_arrays(value):
        array = _from_python(spec, value, dtype)
    else:
        if np.ma.is_masked(value):
            raise ConfigError(
                f"stream {spec.name!r} has {int(np.ma.count_masked(value))} masked values, which cannot be stored as such. "
                "Fill them, for instance with .filled(0)."
            )
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as err:
            raise ConfigError(f"stream {spec.name!r} is not an array: {err}.") from err
        if not np.can_cast(array.dtype, dtype, casting="safe"):
            raise ConfigError(
                f"stream {spec.name!r} has the wrong dtype: got {array.dtype}, expected {spec.dtype} or what casts to "
                f"it safely. Convert it, for instance with .astype({spec.dtype!r})."
            )
    if array.ndim == 0 or array.shape[1:] != spec.shape:
        wanted = "(" + ", ".join(["N", *map(str, spec.shape)]) + ("," if not spec.shape else "") + ")"
        raise ConfigError(f"stream {spec.name!r} has the wrong shape: got {array.shape}, expected {wanted}.")
    if len(array) == 0:
        raise ConfigError(f"stream {spec.name!r} has 0 rows: expected at least 1. Leave out a stream without rows.")
    return np.ascontiguousarray(array, dtype=dtype)


def _holds_arrays(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and hasattr(value[0], "dtype")


def flat_bytes(array: NDArray) -> Buffer:
    """Return the bytes of a C-contiguous array without copying them."""
    return array.reshape(-1).view(np.uint8).data


def encode_signal(spec: StreamSpec, value: Any) -> EncodedStream:
    """Return a numeric stream as npy or npy.zst."""
    rows = check_array(spec, value)
    if spec.encoding == "npy.zst":
        data, chunks = compress_rows(rows)
        return EncodedStream("npy.zst", len(rows), False, ((data,),), chunks, rows)
    header, body = npy_header(rows.dtype, rows.shape), flat_bytes(rows)
    detail = NpyDetail(len(header), checksum_of(body))
    return EncodedStream("npy", len(rows), False, ((header, body),), detail, rows)


def encode_text(spec: StreamSpec, value: Any) -> EncodedStream:
    """Return a text stream: one value for the whole episode, or a list with one for each row."""
    is_list = isinstance(value, (list, tuple))
    items: Sequence[Any] = value if is_list else [value]
    if spec.dtype == "str":
        bad = next((item for item in items if not isinstance(item, str)), None)
        if bad is not None:
            raise ConfigError(f"stream {spec.name!r} holds a {type(bad).__name__}: expected str, or a list of str.")
    if not items:
        raise ConfigError(f"stream {spec.name!r} has 0 rows: expected at least 1. Leave out a stream without rows.")
    if spec.encoding == "txt":
        if is_list:
            raise ConfigError(
                f"stream {spec.name!r} has encoding 'txt', which holds one str for the whole episode: got a list of "
                f"{len(items)}. Declare the stream with encoding='json'."
            )
        data = value.encode("utf-8", "surrogatepass")
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as err:
            raise ConfigError(f"stream {spec.name!r} holds text that is not Unicode: {err}.") from err
    else:
        try:
            data = canonical_json(list(items) if is_list else value)
        except (TypeError, ValueError) as err:
            raise ConfigError(f"stream {spec.name!r} is not JSON: {err}.") from err
    return EncodedStream(spec.encoding, len(items), not is_list, ((data,),), None)


def check_times_ns(what: str, value: Any, num_rows: int) -> Int64Array:
    """Return `value` if it is int64 nanoseconds (num_rows,), strictly rising; `what` names it in errors."""
    try:
        times = np.asarray(value)
    except ValueError as err:
        raise ConfigError(f"{what} are not an array: {err}.") from err
    if times.dtype.kind not in "iu" or not np.can_cast(times.dtype, np.int64, casting="safe"):
        raise ConfigError(
            f"{what} have dtype {times.dtype}: expected int64 nanoseconds; float seconds lose whole microseconds in a day."
        )
    if times.shape != (num_rows,):
        raise ConfigError(f"{what} have shape {times.shape}: expected ({num_rows},), one for each row.")
    times = np.ascontiguousarray(times, dtype=np.int64)
    # compared, not subtracted: a difference of int64 may overflow
    wrong = np.flatnonzero(times[1:] <= times[:-1])
    if len(wrong):
        i = int(wrong[0])
        raise ConfigError(
            f"{what} do not rise strictly: got {int(times[i])} ns at row {i}, then {int(times[i + 1])} ns."
        )
    return times


def is_path(value: Any) -> bool:
    """Return whether `value` names a file (a Path; a str is text to some streams, so it does only for pictures)."""
    return isinstance(value, (str, Path))
