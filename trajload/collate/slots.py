"""The memory of a batch before it is one: allocated once, filled row by row by several threads, then finished."""

# Shapes: B windows, T steps

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trajload.collate.batch import Batch, RefsBuilder
from trajload.collate.pool import MIN_POOLED_BYTES, TensorPool
from trajload.collate.stream_slots import (
    LayoutLike,
    StreamLayout,
    StreamSlots,
    empty_text,
    stream_layouts,
    torch_dtype_of,
)
from trajload.refs import WindowRef
from trajload.types import BoolArray, Int64Array

__all__ = ["BatchSlots", "SlotPlan"]


class SlotPlan:
    """What a batch's memory consists of: tensors by key, in the batch's order. Made once, reserved for every batch.

    Args:
        num_rows: B.
        num_steps: T of the window's own keys.
        stream_layout: As for `BatchSlots.allocate`.
        text_streams: As for `BatchSlots.allocate`.
        row_is_pad: Whether the batch has the key `row_is_pad`.

    Raises:
        ConfigError: A dtype that torch lacks; the message names the stream.
    """

    def __init__(
        self,
        num_rows: int,
        num_steps: int,
        stream_layout: LayoutLike,
        text_streams: Sequence[str] | Mapping[str, str] = (),
        *,
        row_is_pad: bool = False,
    ) -> None:
        B, T = num_rows, num_steps
        self.num_rows = B
        self.layouts = stream_layouts(stream_layout, T)
        self.text = dict(text_streams) if isinstance(text_streams, Mapping) else dict.fromkeys(text_streams, "str")
        self.ragged = tuple(name for name, layout in self.layouts.items() if layout.is_ragged)
        self.values: frozenset[str] = frozenset(self.layouts) - frozenset(self.ragged)
        """Keys whose memory starts undefined even in opened slots."""
        self.tensors: list[tuple[str, tuple[int, ...], torch.dtype, np.dtype[Any] | None]] = []
        """Key, shape, dtype, and the NumPy dtype of those large enough for the pool."""
        for name, layout in self.layouts.items():
            torch_dtype = torch_dtype_of(name, layout.dtype)
            shape = (B, layout.num_places, *layout.row_shape)
            if layout.is_ragged:
                self._add(f"{name}_count", shape[:2], torch.int64)
            else:
                np_dtype = np.dtype(layout.dtype).newbyteorder("=")
                is_large = math.prod(shape) * np_dtype.itemsize >= MIN_POOLED_BYTES
                self.tensors.append((name, shape, torch_dtype, np_dtype if is_large else None))
            if layout.has_age:
                self._add(f"{name}_age_ns", shape[:2], torch.int64)
            self._add(f"{name}_is_pad", shape[:2], torch.bool)
            self._add(f"{name}_is_missing", (B,), torch.bool)
        for name in self.text:
            self._add(f"{name}_is_missing", (B,), torch.bool)
        for name in ("is_first", "is_last", "is_terminal"):
            self._add(name, (B, T), torch.bool)
        for name in ("step_index", "timestamp_ns"):
            self._add(name, (B, T), torch.int64)
        for name in ("episode_index", "window_id", "epoch"):
            self._add(name, (B,), torch.int64)
        if row_is_pad:
            self._add("row_is_pad", (B,), torch.bool)

    def _add(self, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.tensors.append((key, shape, dtype, None))

    def reserve(self, pool: TensorPool | None = None) -> BatchSlots:
        """Return memory for one batch, all of it undefined until it is opened; large streams come from `pool`."""
        return BatchSlots(
            {
                key: torch.empty(shape, dtype=dtype)
                if np_dtype is None or pool is None
                else pool.empty(shape, np_dtype, dtype)
                for key, shape, dtype, np_dtype in self.tensors
            },
            self,
        )


class BatchSlots(StreamSlots):
    """Memory for B windows of T steps: torch tensors, written through NumPy views.

    Memory that was only reserved is opened by the first look at an array of it: then masks become False, numbers 0, and
    the views are made. Who writes whole batches by address (`tensors`) leaves it closed, which saves both.
    The memory of ragged streams is joined at the end, when the longest is known. See `StreamSlots` for the streams.
    """

    def __init__(self, tensors: dict[str, torch.Tensor], plan: SlotPlan) -> None:
        """Use `allocate` or `SlotPlan.reserve`."""
        self.tensors = tensors
        self.num_rows = plan.num_rows
        self.text = empty_text(plan.text, plan.num_rows)
        self.source: list[str] = [""] * plan.num_rows
        self._plan = plan
        self._is_open = False
        self._lock = threading.Lock()

    @classmethod
    def allocate(
        cls,
        num_rows: int,
        num_steps: int,
        stream_layout: LayoutLike,
        text_streams: Sequence[str] | Mapping[str, str] = (),
        *,
        row_is_pad: bool = False,
        pool: TensorPool | None = None,
    ) -> BatchSlots:
        """Return memory for a batch, opened.

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
        return SlotPlan(num_rows, num_steps, stream_layout, text_streams, row_is_pad=row_is_pad).reserve(pool).open()

    def open(self) -> BatchSlots:
        """Make the arrays, masks False and numbers 0, if that was not done before. Thread-safe.

        What was written by address before is lost, but for the values of streams that are not ragged.
        """
        with self._lock:
            if self._is_open:
                return self
            tensors, values = self.tensors, self._plan.values
            arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
            for key, array in arrays.items():
                if key not in values:
                    array[...] = 0
            super().__init__(arrays, self._plan.layouts, self.text, self.num_rows)
            self.is_first: BoolArray = arrays["is_first"]
            self.is_last: BoolArray = arrays["is_last"]
            self.is_terminal: BoolArray = arrays["is_terminal"]
            self.step_index: Int64Array = arrays["step_index"]
            self.timestamp_ns: Int64Array = arrays["timestamp_ns"]
            self.episode_index: Int64Array = arrays["episode_index"]
            self.window_id: Int64Array = arrays["window_id"]
            self.epoch: Int64Array = arrays["epoch"]
            self.row_is_pad: BoolArray | None = arrays.get("row_is_pad")
            """(B,), only where asked for."""
            self._is_open = True
        return self

    if not TYPE_CHECKING:  # typed access sees the attributes that `open` makes

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or self.__dict__.get("_is_open", True):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.open(), name)

    def finish(self, train_step: int, refs: Iterable[WindowRef] | RefsBuilder = ()) -> Batch:
        """Return the batch over this memory, without copying. The slots are not to be written afterwards."""
        for name in self._plan.ragged:
            self.tensors[name], self.tensors[f"{name}_interval_is_pad"] = self._join(name, self._plan.layouts[name])
        values: dict[str, torch.Tensor | list[Any]] = {**self.tensors, **self.text, "source": self.source}
        return Batch(values, train_step=train_step, refs=refs)

    def _join(self, name: str, layout: StreamLayout) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, T, K, *row_shape), zeros behind the last row of each place, and the mask (B, T, K) of those."""
        count_BT = self.count[name]
        longest = int(count_BT.max(initial=0))
        out = torch.zeros((*count_BT.shape, longest, *layout.row_shape), dtype=torch_dtype_of(name, layout.dtype))
        is_pad_BTK = np.arange(longest) >= count_BT[..., None]
        for b, piece in enumerate(self.pieces[name]):
            if piece is not None:
                out.numpy()[b][~is_pad_BTK[b]] = piece
        return out, torch.from_numpy(is_pad_BTK)
