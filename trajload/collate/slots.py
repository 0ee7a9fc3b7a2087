"""The memory of a batch before it is one: allocated once, filled row by row by several threads, then finished."""

# Shapes: B windows, T steps

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trajload.collate.batch import Batch, RefsBuilder
from trajload.collate.pool import TensorPool
from trajload.errors import ConfigError
from trajload.refs import WindowRef
from trajload.types import BoolArray, Int64Array, NDArray

__all__ = ["BatchSlots", "StreamSlots"]

# torch 2.13 neither adds nor compares unsigned integers wider than 8 bits. uint16 is taken all the same, since depth is
# stored so and `.to(torch.int32)` works; uint32 and uint64 are refused by name.
_DTYPES = {
    np.dtype(np_name): getattr(torch, np_name)
    for np_name in (
        *("bool", "uint8", "uint16", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}


class StreamSlots:
    """Memory of the streams of some windows, and their masks, as NumPy arrays.

    Row b of every array belongs to window b alone, so threads may write different rows side by side. Values start
    out undefined: whoever fills a row writes all of it, or zeroes it (`zero`, `set_missing`). Masks start out False,
    text empty.
    """

    def __init__(
        self,
        values: dict[str, NDArray],
        is_pad: dict[str, BoolArray],
        is_missing: dict[str, BoolArray],
        text: dict[str, list[Any]],
    ) -> None:
        """Wrap arrays that exist; see `empty_row` and `BatchSlots.allocate`."""
        self.values = values
        """(B, T, *row_shape) of each picture and signal stream."""
        self.is_pad = is_pad
        """(B, T)"""
        self.is_zero: dict[str, BoolArray] = {name: np.zeros_like(mask) for name, mask in is_pad.items()}
        """(B, T): steps that are zeros since there are no data. Not part of the batch."""
        self.is_missing = is_missing
        """(B,), text streams too."""
        self.text = text
        """B values of each text stream."""

    @classmethod
    def empty_row(
        cls,
        num_steps: int,
        stream_layout: Mapping[str, tuple[tuple[int, ...], Any]],
        text_streams: Mapping[str, str],
        pool: TensorPool,
    ) -> StreamSlots:
        """Return memory for one window that is not part of a batch; arguments as for `BatchSlots.allocate`."""
        values = {
            name: pool.empty(
                (1, num_steps, *shape), np.dtype(dtype).newbyteorder("="), _torch_dtype(name, dtype)
            ).numpy()
            for name, (shape, dtype) in stream_layout.items()
        }
        return cls(
            values,
            {name: np.zeros((1, num_steps), dtype=np.bool_) for name in stream_layout},
            {name: np.zeros(1, dtype=np.bool_) for name in (*stream_layout, *text_streams)},
            _empty_text(text_streams, 1),
        )

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

    def window(self, row: int) -> dict[str, Any]:
        """Return one row as a transform takes it: streams and their masks, arrays as views."""
        out: dict[str, Any] = {name: values[row] for name, values in self.values.items()}
        # JSON objects may be shared with a source's cache: what a transform does to them stays in its window.
        out.update((name, copy.deepcopy(values[row])) for name, values in self.text.items())
        out.update((f"{name}_is_pad", mask[row]) for name, mask in self.is_pad.items())
        out.update((f"{name}_is_missing", bool(mask[row])) for name, mask in self.is_missing.items())
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
        for name, missing in self.is_missing.items():
            missing[row] = window[f"{name}_is_missing"]

    def begin_row(self, stream: str, row: int) -> None:
        """Forget what an earlier window left in the masks of a row that is written anew."""
        self.is_missing[stream][row] = False
        if stream in self.is_zero:
            self.is_zero[stream][row] = False

    def set_missing(self, stream: str, row: int) -> None:
        """Say that the episode of `row` lacks `stream`: zeros, `_is_missing`, and `_is_pad` at every step.

        `_is_pad` too, so that a reader of one mask alone never takes the zeros for data.
        """
        self.is_missing[stream][row] = True
        if stream in self.values:
            self.is_pad[stream][row] = True
            self.zero(stream, row)

    def set_text(self, stream: str, row: int, value: Any) -> None:
        """Set the text or JSON value of one window."""
        self.text[stream][row] = value


class BatchSlots(StreamSlots):
    """Memory for B windows of T steps: torch tensors, written through NumPy views.

    Row b of every array belongs to window b alone, so threads may write different rows side by side. Values start
    out undefined: whoever fills a row writes all of it, or zeroes it (`zero`, `set_missing`). Masks start out False,
    numbers 0, text empty.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        stream_layout: Mapping[str, tuple[tuple[int, ...], Any]],
        text: dict[str, list[Any]],
        num_rows: int,
    ) -> None:
        """Use `allocate`."""
        self._tensors = tensors
        self.num_rows = num_rows
        super().__init__(
            {name: tensors[name].numpy() for name in stream_layout},
            {name: tensors[f"{name}_is_pad"].numpy() for name in stream_layout},
            {name: tensors[f"{name}_is_missing"].numpy() for name in (*stream_layout, *text)},
            text,
        )
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
        stream_layout: Mapping[str, tuple[tuple[int, ...], Any]],
        text_streams: Sequence[str] | Mapping[str, str] = (),
        *,
        row_is_pad: bool = False,
        pool: TensorPool | None = None,
    ) -> BatchSlots:
        """Return memory for a batch.

        Args:
            num_rows: B.
            num_steps: T.
            stream_layout: For each picture and signal stream the shape of one step, (C, H, W) or (D,) or (), and its
                NumPy dtype. Foreign byte orders are stored in the machine's own.
            text_streams: Names of the text streams; a mapping gives each its dtype, 'str' or 'json' ('str' if not
                given). Where an episode lacks one, the value is "" or None.
            row_is_pad: Whether the batch has the key `row_is_pad`.
            pool: Where the memory of large streams comes from and returns to; None takes fresh memory.

        Raises:
            ConfigError: A dtype that torch lacks; the message names the stream.
        """
        B, T = num_rows, num_steps
        tensors: dict[str, torch.Tensor] = {}
        for name, (row_shape, dtype) in stream_layout.items():
            torch_dtype = _torch_dtype(name, dtype)
            if pool is None:
                tensors[name] = torch.empty((B, T, *row_shape), dtype=torch_dtype)
            else:
                tensors[name] = pool.empty((B, T, *row_shape), np.dtype(dtype).newbyteorder("="), torch_dtype)
            tensors[f"{name}_is_pad"] = torch.zeros((B, T), dtype=torch.bool)
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
        return cls(tensors, stream_layout, _empty_text(text_dtypes, B), B)

    def finish(self, train_step: int, refs: Iterable[WindowRef] | RefsBuilder = ()) -> Batch:
        """Return the batch over this memory, without copying. The slots are not to be written afterwards."""
        values: dict[str, torch.Tensor | list[Any]] = {**self._tensors, **self.text, "source": self.source}
        return Batch(values, train_step=train_step, refs=refs)


def _empty_text(dtypes: Mapping[str, str], num_rows: int) -> dict[str, list[Any]]:
    return {name: ["" if dtype == "str" else None for _ in range(num_rows)] for name, dtype in dtypes.items()}


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
