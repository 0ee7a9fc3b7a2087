"""The memory of a batch before it is one: reserved once, filled row by row by several threads, then finished."""

# Shapes: B windows, T steps

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Mapping, Sequence
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

__all__ = ["BatchSlots", "SlotPlan"]


class SlotPlan:
    """What a batch's memory consists of: tensors by key, in the batch's order. Made once, reserved for every batch.

    Args:
        num_rows: B.
        num_steps: T of the window's own keys.
        stream_layout: For each picture and signal stream its layout; a pair of the shape of one step, (C, H, W) or
            (D,) or (), and NumPy dtype means T places. Foreign byte orders are stored in the machine's own.
        text_streams: Names of the text streams; a mapping gives each its dtype, 'str' or 'json' ('str' if not
            given). Where an episode lacks one, the value is "" or None.
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
        flag, number = np.dtype(np.bool_), np.dtype(np.int64)
        self.num_rows = B
        self.layouts = stream_layouts(stream_layout, T)
        self.text = dict(text_streams) if isinstance(text_streams, Mapping) else dict.fromkeys(text_streams, "str")
        self.ragged = tuple(name for name, layout in self.layouts.items() if layout.is_ragged)
        self.values: frozenset[str] = frozenset(self.layouts) - frozenset(self.ragged)
        """Keys whose memory starts undefined even in opened slots."""
        shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for name, layout in self.layouts.items():
            places, dtype = (B, layout.num_places), native_dtype_of(name, layout.dtype)
            if layout.is_ragged:
                shapes[f"{name}_count"] = (places, number)
            else:
                shapes[name] = ((*places, *layout.row_shape), dtype)
            if layout.has_age:
                shapes[f"{name}_age_ns"] = (places, number)
            shapes[f"{name}_is_pad"] = (places, flag)
            shapes[f"{name}_is_missing"] = ((B,), flag)
        shapes.update((f"{name}_is_missing", ((B,), flag)) for name in self.text)
        shapes.update((name, ((B, T), flag)) for name in ("is_first", "is_last", "is_terminal"))
        shapes.update((name, ((B, T), number)) for name in ("step_index", "timestamp_ns"))
        shapes.update((name, ((B,), number)) for name in ("episode_index", "window_id", "epoch"))
        if row_is_pad:
            shapes["row_is_pad"] = ((B,), flag)
        self.shapes = shapes
        """Shape and dtype of each tensor that has a size of its own; the values of ragged streams are not among them."""

    def reserve(self, pool: TensorPool | None = None) -> BatchSlots:
        """Return memory for one batch, all of it undefined until it is opened; large streams come from `pool`."""
        import torch  # here: worker processes write arrays that exist, and do not pay for loading it

        # Arrays that torch takes over: making a tensor lets go of Python's lock, and ten of them wait for it ten times.
        pool = pool or TensorPool(max_free=0)
        arrays = {key: pool.empty_array(shape, dtype) for key, (shape, dtype) in self.shapes.items()}
        return BatchSlots(self, arrays, {key: torch.from_numpy(array) for key, array in arrays.items()})

    def over(self, arrays: Mapping[str, NDArray], *, is_filled: bool = False) -> BatchSlots:
        """Return slots over memory that exists, shaped as `shapes` says; `is_filled` keeps its masks and numbers."""
        return BatchSlots(self, arrays).open(is_filled=is_filled)


class BatchSlots(StreamSlots):
    """Memory for B windows of T steps: torch tensors written through NumPy views, or arrays that will be their memory.

    Reserved slots are undefined, and good for writing whole by address. `open`, or the first look at an array, makes
    the views, and masks False and numbers 0. The memory of ragged streams is joined at the end, when the longest is
    known. See `StreamSlots` for the streams.
    """

    def __init__(
        self,
        plan: SlotPlan,
        arrays: Mapping[str, NDArray],
        tensors: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Use `SlotPlan.reserve` or `SlotPlan.over`."""
        self.num_rows = plan.num_rows
        self.text = empty_text(plan.text, plan.num_rows)
        self.source: list[str] = [""] * plan.num_rows
        self._tensors = tensors
        self._arrays = arrays
        self._plan = plan
        self._is_open = False
        self._lock = threading.Lock()

    def addresses(self) -> list[int]:
        """Return where the memory of each tensor begins, in the order of `SlotPlan.shapes`."""
        if self._tensors is not None:
            return [tensor.data_ptr() for tensor in self._tensors.values()]
        return [int(self._arrays[key].ctypes.data) for key in self._plan.shapes]

    def memory(self, key: str) -> NDArray:
        """Return one tensor's memory without opening the slots."""
        return self._arrays[key]

    def open(self, *, is_filled: bool = False, but: Container[str] = ()) -> BatchSlots:
        """Make the arrays, masks False and numbers 0 unless filled, if that was not done before. Thread-safe.

        What was written by address before is lost, but for the values of streams that are not ragged.

        Args:
            is_filled: Whether masks and numbers are in place.
            but: Keys that are left as they are, since all of them will be written.
        """
        with self._lock:
            if self._is_open:
                return self
            arrays = self._arrays
            for key, array in arrays.items():
                if key not in self._plan.values and not is_filled and key not in but:
                    array[...] = 0
            super().__init__(arrays, self._plan.layouts, self.text, self._plan.text, self.num_rows)
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
        from trajload.collate.batch import Batch

        tensors = self._tensors
        if tensors is None:
            import torch

            tensors = {key: torch.from_numpy(array) for key, array in self._arrays.items()}
        for name in self._plan.ragged:
            tensors[name], tensors[f"{name}_interval_is_pad"] = self._join(name, self._plan.layouts[name])
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
