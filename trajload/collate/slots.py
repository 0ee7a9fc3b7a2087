"""The memory of a batch before it is one: allocated once, filled row by row by several threads, then finished."""

# Shapes: B windows, T steps

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.collate.pool import TensorPool
from trajload.collate.stream_slots import (
    LayoutLike,
    StreamLayout,
    StreamSlots,
    empty_text,
    native_dtype_of,
    stream_layouts,
    torch_dtype_of,
)
from trajload.refs import WindowRef
from trajload.types import BoolArray, Int64Array, NDArray

if TYPE_CHECKING:
    import torch

    from trajload.collate.batch import Batch, RefsBuilder

__all__ = ["BatchSlots", "slot_shapes"]


def slot_shapes(
    num_rows: int,
    num_steps: int,
    stream_layout: LayoutLike,
    text_streams: Iterable[str] = (),
    *,
    row_is_pad: bool = False,
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and dtype of each tensor of a batch that has a size of its own, by key, in the batch's order.

    Arguments as for `BatchSlots.allocate`. The values of ragged streams are not among them.
    """
    B, T = num_rows, num_steps
    flag, number = np.dtype(np.bool_), np.dtype(np.int64)
    out: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for name, layout in stream_layouts(stream_layout, T).items():
        places = (B, layout.num_places)
        dtype = native_dtype_of(name, layout.dtype)
        if layout.is_ragged:
            out[f"{name}_count"] = (places, number)
        else:
            out[name] = ((*places, *layout.row_shape), dtype)
        if layout.has_age:
            out[f"{name}_age_ns"] = (places, number)
        out[f"{name}_is_pad"] = (places, flag)
        out[f"{name}_is_missing"] = ((B,), flag)
    out.update((f"{name}_is_missing", ((B,), flag)) for name in text_streams)
    out.update((name, ((B, T), flag)) for name in ("is_first", "is_last", "is_terminal"))
    out.update((name, ((B, T), number)) for name in ("step_index", "timestamp_ns"))
    out.update((name, ((B,), number)) for name in ("episode_index", "window_id", "epoch"))
    if row_is_pad:
        out["row_is_pad"] = ((B,), flag)
    return out


class BatchSlots(StreamSlots):
    """Memory for B windows of T steps: torch tensors, written through NumPy views.

    The memory of ragged streams is joined at the end, when the longest is known. See `StreamSlots` for the streams.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray],
        layouts: Mapping[str, StreamLayout],
        text: dict[str, list[Any]],
        num_rows: int,
        tensors: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Wrap arrays that exist, as `slot_shapes` has them, and perhaps the tensors over them; see `allocate`."""
        super().__init__(arrays, layouts, text, num_rows)
        self._arrays = arrays
        self._tensors = tensors
        self._layouts = layouts
        self.is_first: BoolArray = arrays["is_first"]
        self.is_last: BoolArray = arrays["is_last"]
        self.is_terminal: BoolArray = arrays["is_terminal"]
        self.step_index: Int64Array = arrays["step_index"]
        self.timestamp_ns: Int64Array = arrays["timestamp_ns"]
        self.episode_index: Int64Array = arrays["episode_index"]
        self.window_id: Int64Array = arrays["window_id"]
        self.epoch: Int64Array = arrays["epoch"]
        self.source: list[str] = [""] * num_rows
        self.row_is_pad: BoolArray | None = arrays.get("row_is_pad")
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
        import torch  # here: worker processes write arrays that exist, and do not pay for loading it

        layouts = stream_layouts(stream_layout, num_steps)
        text_dtypes = text_streams if isinstance(text_streams, Mapping) else dict.fromkeys(text_streams, "str")
        tensors: dict[str, torch.Tensor] = {}
        for key, (shape, dtype) in slot_shapes(
            num_rows, num_steps, layouts, text_dtypes, row_is_pad=row_is_pad
        ).items():
            torch_dtype = getattr(torch, dtype.name)
            if key not in layouts:
                tensors[key] = torch.zeros(shape, dtype=torch_dtype)
            elif pool is None:
                tensors[key] = torch.empty(shape, dtype=torch_dtype)
            else:
                tensors[key] = pool.empty(shape, dtype, torch_dtype)
        arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
        return cls(arrays, layouts, empty_text(text_dtypes, num_rows), num_rows, tensors)

    def finish(self, train_step: int, refs: Iterable[WindowRef] | RefsBuilder = ()) -> Batch:
        """Return the batch over this memory, without copying. The slots are not to be written afterwards."""
        import torch

        from trajload.collate.batch import Batch

        tensors = self._tensors or {key: torch.from_numpy(array) for key, array in self._arrays.items()}
        for name in self.pieces:
            tensors[name], tensors[f"{name}_interval_is_pad"] = self._join(name, self._layouts[name])
        values: dict[str, torch.Tensor | list[Any]] = {**tensors, **self.text, "source": self.source}
        return Batch(values, train_step=train_step, refs=refs)

    def _join(self, name: str, layout: StreamLayout) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (B, T, K, *row_shape), zeros behind the last row of each place, and the mask (B, T, K) of those."""
        import torch

        count_BT = self.count[name]
        longest = int(count_BT.max(initial=0))
        out = torch.zeros((*count_BT.shape, longest, *layout.row_shape), dtype=torch_dtype_of(name, layout.dtype))
        is_pad_BTK = np.arange(longest) >= count_BT[..., None]
        for b, piece in enumerate(self.pieces[name]):
            if piece is not None:
                out.numpy()[b][~is_pad_BTK[b]] = piece
        return out, torch.from_numpy(is_pad_BTK)
