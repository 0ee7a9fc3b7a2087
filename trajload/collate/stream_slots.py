"""The memory of decoded streams, some windows of them: in a batch, or one window on its way through transforms."""

# Shapes: B windows, T places of one stream, K rows of a ragged stream

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.collate.pool import TensorPool
from trajload.errors import ConfigError
from trajload.types import BoolArray, Int64Array, NDArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "LayoutLike",
    "StreamLayout",
    "StreamSlots",
    "empty_text",
    "native_dtype_of",
    "stream_layouts",
    "torch_dtype_of",
]

# torch 2.13 neither adds nor compares unsigned integers wider than 8 bits. uint16 is taken all the same, since depth is
# stored so and `.to(torch.int32)` works; uint32 and uint64 are refused by name.
_DTYPES = (
    *("bool", "uint8", "uint16", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""Names, the same in NumPy and torch."""


@dataclass(frozen=True, slots=True)
class StreamLayout:
    """What the memory of one picture or signal stream looks like."""

    row_shape: tuple[int, ...]
    """(C, H, W) or (D,) or ()."""
    dtype: Any
    num_places: int
    """T of the stream."""
    has_age: bool = False
    """Whether the batch has the key `<stream>_age_ns`."""
    is_ragged: bool = False
    """Any number of rows at each place: `<stream>_interval_is_pad` and `<stream>_count`."""

    @property
    def window_bytes(self) -> int:
        """Bytes of one window, with one row a place."""
        return self.num_places * math.prod(self.row_shape) * np.dtype(self.dtype).itemsize


LayoutLike = Mapping[str, "StreamLayout | tuple[tuple[int, ...], Any]"]
"""For each picture and signal stream its layout; a pair of row shape and dtype has the window's T."""


def stream_layouts(layout: LayoutLike, num_steps: int) -> dict[str, StreamLayout]:
    """Return layouts in full, `num_steps` places where a pair says nothing else."""
    return {
        name: given if isinstance(given, StreamLayout) else StreamLayout(*given, num_places=num_steps)
        for name, given in layout.items()
    }


class StreamSlots:
    """Memory of the streams of some windows, and their masks, as NumPy arrays. Streams may have a T of their own.

    Row b of every array belongs to window b alone, so threads may write different rows side by side. Values start
    out undefined: whoever fills a row writes all of it, or zeroes it (`zero`, `set_missing`). Masks start out False,
    numbers 0, text empty. Ragged streams hold one array a window, of any number of rows.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray],
        layouts: Mapping[str, StreamLayout],
        text: dict[str, list[Any]],
        text_dtypes: Mapping[str, str],
        num_rows: int,
    ) -> None:
        """Wrap arrays that exist, named as in a batch; see `empty_row` and `BatchSlots`."""
        ragged = [name for name, layout in layouts.items() if layout.is_ragged]
        self.num_rows = num_rows
        self.values: dict[str, NDArray] = {name: arrays[name] for name in layouts if name not in ragged}
        """(B, T, *row_shape) of each picture and signal stream that is not ragged."""
        self.pieces: dict[str, list[NDArray | None]] = {name: [None] * num_rows for name in ragged}
        """B arrays (K, *row_shape) of each ragged stream, None where nothing is there."""
        self.count: dict[str, Int64Array] = {name: arrays[f"{name}_count"] for name in ragged}
        """(B, T): how many rows of `pieces` each place has."""
        self.age_ns: dict[str, Int64Array] = {
            name: arrays[f"{name}_age_ns"] for name, layout in layouts.items() if layout.has_age
        }
        """(B, T), only where asked for."""
        self.is_pad: dict[str, BoolArray] = {name: arrays[f"{name}_is_pad"] for name in layouts}
        """(B, T)"""
        self.is_zero: dict[str, BoolArray] = {name: np.zeros_like(self.is_pad[name]) for name in self.values}
        """(B, T): places that are zeros since there are no data. Not part of the batch."""
        self.is_missing: dict[str, BoolArray] = {name: arrays[f"{name}_is_missing"] for name in (*layouts, *text)}
        """(B,), text streams too."""
        self.text = text
        """B values of each text stream."""
        self.text_dtypes = text_dtypes
        """'str' or 'json', of each text stream."""

    @classmethod
    def empty_row(
        cls, num_steps: int, stream_layout: LayoutLike, text_streams: Mapping[str, str], pool: TensorPool
    ) -> StreamSlots:
        """Return memory for one window that is not part of a batch; arguments as for `SlotPlan`."""
        layouts = stream_layouts(stream_layout, num_steps)
        arrays: dict[str, NDArray] = {}
        for name, layout in layouts.items():
            places = (1, layout.num_places)
            if layout.is_ragged:
                arrays[f"{name}_count"] = np.zeros(places, dtype=np.int64)
            else:
                arrays[name] = pool.empty_array((*places, *layout.row_shape), native_dtype_of(name, layout.dtype))
            if layout.has_age:
                arrays[f"{name}_age_ns"] = np.zeros(places, dtype=np.int64)
            arrays[f"{name}_is_pad"] = np.zeros(places, dtype=np.bool_)
        for name in (*layouts, *text_streams):
            arrays[f"{name}_is_missing"] = np.zeros(1, dtype=np.bool_)
        return cls(arrays, layouts, empty_text(text_streams, 1), text_streams, 1)

    # ---- written as a window is decoded ----

    def begin_row(self, stream: str, row: int) -> None:
        """Forget what an earlier window left in the masks of a row that is written anew."""
        self.is_missing[stream][row] = False
        if stream in self.is_zero:
            self.is_zero[stream][row] = False

    def zero(self, stream: str, row: int, is_zero_T: BoolArray | None = None) -> None:
        """Zero the steps of a row where `is_zero_T` (T,) is True, or all of them. Masks are not touched."""
        values_T = self.values[stream][row]
        if is_zero_T is None:
            values_T[...] = 0
            self.is_zero[stream][row] = True
        else:
            is_zero_T = np.asarray(is_zero_T, dtype=np.bool_)
            values_T[is_zero_T] = 0
            self.is_zero[stream][row] |= is_zero_T

    def set_missing(self, stream: str, row: int) -> None:
        """Say that the window of `row` has no `stream`: zeros, no text, `_is_missing`, and `_is_pad` at every step.

        `_is_pad` too, so that a reader of one mask alone never takes the zeros for data.
        """
        self.is_missing[stream][row] = True
        if stream in self.is_pad:
            self.is_pad[stream][row] = True
        if stream in self.values:
            self.zero(stream, row)
        if stream in self.age_ns:
            self.age_ns[stream][row] = 0
        if stream in self.pieces:
            self.pieces[stream][row] = None
            self.count[stream][row] = 0
        if stream in self.text:  # a window that could not be read may have left its own
            self.text[stream][row] = _no_text(self.text_dtypes[stream])

    def set_ragged(self, stream: str, row: int, values_K: NDArray, count_T: Int64Array) -> None:
        """Give the values of a ragged stream: those of its first place, then of the next, `count_T` (T,) each."""
        self.pieces[stream][row] = values_K
        self.count[stream][row] = count_T

    def set_text(self, stream: str, row: int, value: Any) -> None:
        """Set the text or JSON value of one window."""
        self.text[stream][row] = value

    # ---- on the way through transforms ----

    def window(self, row: int) -> dict[str, Any]:
        """Return one row as a transform takes it: streams and their masks, arrays as views.

        Without ages and ragged streams, which pass by transforms (`take_rest`).
        """
        out: dict[str, Any] = {name: values[row] for name, values in self.values.items()}
        # JSON objects may be shared with a source's cache: what a transform does to them stays in its window.
        out.update((name, copy.deepcopy(values[row])) for name, values in self.text.items())
        out.update((f"{name}_is_pad", self.is_pad[name][row]) for name in self.values)
        out.update((f"{name}_is_missing", bool(self.is_missing[name][row])) for name in (*self.values, *self.text))
        return out

    def set_window(self, row: int, window: Mapping[str, Any], is_zero: Mapping[str, BoolArray]) -> None:
        """Write a transformed window into a row; steps without data (`is_zero`, (T,) per stream) become zeros."""
        for name, values in self.values.items():
            values[row] = window[name]
            self.is_pad[name][row] = window[f"{name}_is_pad"]
            if is_zero[name].any():
                self.zero(name, row, is_zero[name])
        for name, texts in self.text.items():
            texts[row] = window[name]
        for name in (*self.values, *self.text):
            self.is_missing[name][row] = window[f"{name}_is_missing"]

    def take_rest(self, row: int, other: StreamSlots, other_row: int) -> None:
        """Write what `window` leaves out of a row of `other`, after `set_window`: ages, ragged streams with their masks."""
        for name, age_ns in self.age_ns.items():
            age_ns[row] = other.age_ns[name][other_row]
            if name in self.values:
                age_ns[row][self.is_pad[name][row]] = 0  # a transform may have marked more steps as padding
        for name, pieces in self.pieces.items():
            pieces[row] = other.pieces[name][other_row]
            self.count[name][row] = other.count[name][other_row]
            self.is_pad[name][row] = other.is_pad[name][other_row]
            self.is_missing[name][row] = other.is_missing[name][other_row]


def empty_text(dtypes: Mapping[str, str], num_rows: int) -> dict[str, list[Any]]:
    """Return the values of text streams before any is set."""
    return {name: [_no_text(dtype)] * num_rows for name, dtype in dtypes.items()}


def _no_text(dtype: str) -> str | None:
    """Return what stands where a window has no text."""
    return "" if dtype == "str" else None


def native_dtype_of(stream: str, dtype: Any) -> np.dtype[Any]:
    """Return a stream's dtype in the machine's byte order; ConfigError where torch has no such dtype."""
    try:
        native = np.dtype(dtype).newbyteorder("=")
    except TypeError as err:
        raise ConfigError(f"dtype {dtype!r} of stream {stream!r} is unusable: expected a NumPy dtype.") from err
    if native.name not in _DTYPES:
        raise ConfigError(
            f"stream {stream!r} cannot be put in a batch: got dtype {native.name}, expected one of "
            f"{', '.join(_DTYPES)}. Store it as one of these, or leave the stream out."
        )
    return native


def torch_dtype_of(stream: str, dtype: Any) -> torch.dtype:
    """Return the torch dtype that holds a stream's NumPy dtype; ConfigError where there is none."""
    import torch

    found: torch.dtype = getattr(torch, native_dtype_of(stream, dtype).name)
    return found
