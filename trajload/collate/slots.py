"""The memory of a batch before it is one: allocated once, filled row by row by several threads, then finished."""

# Shapes: B windows, T steps

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trajload.collate.batch import Batch, RefsBuilder
from trajload.collate.pool import TensorPool
from trajload.errors import ConfigError
from trajload.refs import WindowRef
from trajload.types import BoolArray, Int64Array, NDArray

__all__ = ["BatchSlots", "StreamLayout"]

# torch 2.13 neither adds nor compares unsigned integers wider than 8 bits. uint16 is taken all the same, since depth is
# stored so and `.to(torch.int32)` works; uint32 and uint64 are refused by name.
_DTYPES = {
    np.dtype(np_name): getattr(torch, np_name)
    for np_name in (
        *("bool", "uint8", "uint16", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}


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


class BatchSlots:
    """Memory for B windows of T steps: torch tensors, written through NumPy views.

    Streams may have a T of their own. The memory of ragged streams is joined at the end, when the longest is known.

    Row b of every array belongs to window b alone, so threads may write different rows side by side. Values start
    out undefined: whoever fills a row writes all of it, or zeroes it (`zero`, `set_missing`). Masks start out False,
    numbers 0, text empty.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        stream_layout: Mapping[str, StreamLayout],
        text: dict[str, list[Any]],
        num_rows: int,
    ) -> None:
        """Use `allocate`."""
        self._tensors = tensors
        self._ragged = {name: layout for name, layout in stream_layout.items() if layout.is_ragged}
        self._pieces: dict[str, list[NDArray | None]] = {name: [None] * num_rows for name in self._ragged}
        self.num_rows = num_rows
        self.values: dict[str, NDArray] = {
            name: tensors[name].numpy() for name, layout in stream_layout.items() if not layout.is_ragged
        }
        """(B, T, *row_shape) of each picture and signal stream that is not ragged."""
        self.age_ns: dict[str, Int64Array] = {
            name: tensors[f"{name}_age_ns"].numpy() for name, layout in stream_layout.items() if layout.has_age
        }
        """(B, T), only where asked for."""
        self.is_pad: dict[str, BoolArray] = {name: tensors[f"{name}_is_pad"].numpy() for name in stream_layout}
        """(B, T)"""
        self.is_missing: dict[str, BoolArray] = {
            name: tensors[f"{name}_is_missing"].numpy() for name in (*stream_layout, *text)
        }
        """(B,), text streams too."""
        self.text: dict[str, list[Any]] = text
        """B values of each text stream."""
        self.is_first: BoolArray = tensors["is_first"].numpy()
        self.is_last: BoolArray = tensors["is_last"].numpy()
        self.is_terminal: BoolArray = tensors["is_terminal"].numpy()
        self.step_index: Int64Array = tensors["step_index"].numpy()
        self.timestamp_ns: Int64Array = tensors["timestamp_ns"].numpy()
        self.episode_index: Int64Array = tensors["episode_index"].numpy()
        self.window_id: Int64Array = tensors["window_id"].numpy()
        self.epoch: Int64Array = tensors["epoch"].numpy()
        self.source: list[str] = [""] * num_rows
        self.row_is_pad: BoolArray | None = tensors["row_is_pad"].numpy() if "row_is_pad" in tensors else None
        """(B,), only where asked for."""

    @classmethod
    def allocate(
        cls,
        num_rows: int,
        num_steps: int,
        stream_layout: Mapping[str, StreamLayout | tuple[tuple[int, ...], Any]],
        text_streams: Sequence[str] | Mapping[str, str] = (),
        *,
        row_is_pad: bool = False,
        pool: TensorPool | None = None,
    ) -> BatchSlots:
        """Return memory for a batch.

        Args:
            num_rows: B.
            num_steps: T of the window's own keys.
            stream_layout: For each picture and signal stream its layout; a pair of the shape of one step, (C, H, W) or
                (D,) or (), and NumPy dtype means T places. Foreign byte orders are stored in the machine's own.
            text_streams: Names of the text streams; a mapping gives each its dtype, 'str' or 'json' ('str' if not
                given). Where an episode lacks one, the value is "" or None.
            row_is_pad: Whether the batch has the key `row_is_pad`.
            pool: Where the memory of large streams comes from and returns to; None takes fresh memory.

        Raises:
            ConfigError: A dtype that torch lacks; the message names the stream.
        """
        B, T = num_rows, num_steps
        tensors: dict[str, torch.Tensor] = {}
        layouts = {
            name: layout if isinstance(layout, StreamLayout) else StreamLayout(*layout, num_places=T)
            for name, layout in stream_layout.items()
        }
        for name, layout in layouts.items():
            torch_dtype = _torch_dtype(name, layout.dtype)
            shape = (B, layout.num_places, *layout.row_shape)
            if layout.is_ragged:
                tensors[f"{name}_count"] = torch.zeros(shape[:2], dtype=torch.int64)
            elif pool is None:
                tensors[name] = torch.empty(shape, dtype=torch_dtype)
            else:
                tensors[name] = pool.empty(shape, np.dtype(layout.dtype).newbyteorder("="), torch_dtype)
            if layout.has_age:
                tensors[f"{name}_age_ns"] = torch.zeros(shape[:2], dtype=torch.int64)
            tensors[f"{name}_is_pad"] = torch.zeros(shape[:2], dtype=torch.bool)
            tensors[f"{name}_is_missing"] = torch.zeros(B, dtype=torch.bool)
        text_dtypes = text_streams if isinstance(text_streams, Mapping) else dict.fromkeys(text_streams, "str")
        for name in text_dtypes:
            tensors[f"{name}_is_missing"] = torch.zeros(B, dtype=torch.bool)
        for name in ("is_first", "is_last", "is_terminal"):
            tensors[name] = torch.zeros((B, T), dtype=torch.bool)
        for name in ("step_index", "timestamp_ns"):
            tensors[name] = torch.zeros((B, T), dtype=torch.int64)
        for name in ("episode_index", "window_id", "epoch"):
            tensors[name] = torch.zeros(B, dtype=torch.int64)
        if row_is_pad:
            tensors["row_is_pad"] = torch.zeros(B, dtype=torch.bool)
        text: dict[str, list[Any]] = {
            name: ["" if dtype == "str" else None for _ in range(B)] for name, dtype in text_dtypes.items()
        }
        return cls(tensors, layouts, text, B)

    def zero(self, stream: str, row: int, is_zero_T: BoolArray | None = None) -> None:
        """Zero the steps of a row where `is_zero_T` (T,) is True, or all of them. Masks are not touched."""
        values_T = self.values[stream][row]
        if is_zero_T is None:
            values_T[...] = 0
        else:
            values_T[np.asarray(is_zero_T, dtype=np.bool_)] = 0

    def set_missing(self, stream: str, row: int) -> None:
        """Say that the episode of `row` lacks `stream`: zeros, `_is_missing`, and `_is_pad` at every step.

        `_is_pad` too, so that a reader of one mask alone never takes the zeros for data.
        """
        self.is_missing[stream][row] = True
        if stream in self.is_pad:
            self.is_pad[stream][row] = True
        if stream in self.values:
            self.zero(stream, row)
        if stream in self.age_ns:
            self.age_ns[stream][row] = 0
        if stream in self._ragged:
            self._pieces[stream][row] = None
            self._tensors[f"{stream}_count"][row] = 0

    def set_ragged(self, stream: str, row: int, values_K: NDArray, count_T: Int64Array) -> None:
        """Give the values of a ragged stream: those of its first place, then of the next, `count_T` (T,) each."""
        self._pieces[stream][row] = values_K
        self._tensors[f"{stream}_count"].numpy()[row] = count_T

    def set_text(self, stream: str, row: int, value: Any) -> None:
        """Set the text or JSON value of one window."""
        self.text[stream][row] = value

    def finish(self, train_step: int, refs: Iterable[WindowRef] | RefsBuilder = ()) -> Batch:
        """Return the batch over this memory, without copying. The slots are not to be written afterwards."""
        for name, layout in self._ragged.items():
            self._tensors[name], self._tensors[f"{name}_interval_is_pad"] = self._join(name, layout)
        values: dict[str, torch.Tensor | list[Any]] = {**self._tensors, **self.text, "source": self.source}
        return Batch(values, train_step=train_step, refs=refs)

    def _join(self, name: str, layout: StreamLayout) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, T, K, *row_shape), zeros behind the last row of each place, and the mask (B, T, K) of those."""
        count_BT = self._tensors[f"{name}_count"].numpy()
        longest = int(count_BT.max(initial=0))
        out = torch.zeros((*count_BT.shape, longest, *layout.row_shape), dtype=_torch_dtype(name, layout.dtype))
        is_pad_BTK = np.arange(longest) >= count_BT[..., None]
        for b, piece in enumerate(self._pieces[name]):
            if piece is not None:
                out.numpy()[b][~is_pad_BTK[b]] = piece
        return out, torch.from_numpy(is_pad_BTK)


def _torch_dtype(stream: str, dtype: Any) -> torch.dtype:
    try:
        native = np.dtype(dtype).newbyteorder("=")
    except TypeError as err:
        raise ConfigError(f"dtype {dtype!r} of stream {stream!r} is unusable: expected a NumPy dtype.") from err
    found: torch.dtype | None = _DTYPES.get(native)
    if found is None:
        raise ConfigError(
            f"stream {stream!r} cannot be put in a batch: got dtype {native.name}, expected one of "
            f"{', '.join(d.name for d in _DTYPES)}. Store it as one of these, or leave the stream out."
        )
    return found
