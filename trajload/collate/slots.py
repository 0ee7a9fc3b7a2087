"""The memory of a batch before it is one: allocated once, filled row by row by several threads, then finished."""

# Shapes: B windows, T steps

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trajload.collate.batch import Batch, RefsBuilder
from trajload.collate.pool import TensorPool
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

__all__ = ["BatchSlots"]


class BatchSlots(StreamSlots):
    """Memory for B windows of T steps: torch tensors, written through NumPy views.

    The memory of ragged streams is joined at the end, when the longest is known. See `StreamSlots` for the streams.
    """

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        layouts: Mapping[str, StreamLayout],
        text: dict[str, list[Any]],
        num_rows: int,
    ) -> None:
        """Use `allocate`."""
        super().__init__({key: tensor.numpy() for key, tensor in tensors.items()}, layouts, text, num_rows)
        self._tensors = tensors
        self._layouts = layouts
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
        stream_layout: LayoutLike,
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
        layouts = stream_layouts(stream_layout, T)
        for name, layout in layouts.items():
            torch_dtype = torch_dtype_of(name, layout.dtype)
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
        return cls(tensors, layouts, empty_text(text_dtypes, B), B)

    def finish(self, train_step: int, refs: Iterable[WindowRef] | RefsBuilder = ()) -> Batch:
        """Return the batch over this memory, without copying. The slots are not to be written afterwards."""
        for name in self.pieces:
            self._tensors[name], self._tensors[f"{name}_interval_is_pad"] = self._join(name, self._layouts[name])
        values: dict[str, torch.Tensor | list[Any]] = {**self._tensors, **self.text, "source": self.source}
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
