"""Plain trees that are restored in place, so that whoever holds a dict, a list or a tensor of it sees the saved values."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["assign"]


def assign(live: Any, saved: Any) -> Any:
    """Give `live` the values of `saved` where its kind can be changed, and return what now stands for them.

    Tensors and arrays of the same shape and dtype are written into; dicts, lists, deques and sets keep their identity, at
    any depth; everything else is replaced by what was saved.
    """
    if live is saved:
        return live
    if isinstance(live, Tensor) and isinstance(saved, Tensor):
        if live.shape == saved.shape and live.dtype == saved.dtype and not _is_expanded(live):
            with torch.no_grad():
                live.copy_(saved)
            return live
        return saved.to(live.device)
    if type(live) is not type(saved):
        return saved
    if isinstance(live, np.ndarray):
        if live.shape == saved.shape and live.dtype == saved.dtype and live.flags.writeable:
            live[...] = saved
            return live
    elif isinstance(live, MutableMapping):
        items = {key: assign(live[key], value) if key in live else value for key, value in saved.items()}
        live.clear()
        live.update(items)
        return live
    elif isinstance(live, deque):
        if live.maxlen == saved.maxlen:
            held = _pairwise(live, saved)
            live.clear()
            live.extend(held)
            return live
    elif isinstance(live, (list, bytearray)):
        live[:] = _pairwise(live, saved) if isinstance(live, list) else saved
        return live
    elif isinstance(live, set):
        live.clear()
        live.update(saved)
        return live
    elif isinstance(live, tuple) and len(live) == len(saved):
        return type(live)(_pairwise(live, saved))
    return saved


def _is_expanded(live: Tensor) -> bool:
    """Whether elements of a tensor share memory, so that it cannot be written into."""
    return any(stride == 0 and size > 1 for stride, size in zip(live.stride(), live.shape, strict=True))


def _pairwise(live: Any, saved: Any) -> list[Any]:
    """Return the saved items, written into the live ones at the same places as far as there are any."""
    held = list(live)
    return [assign(held[i], item) if i < len(held) else item for i, item in enumerate(saved)]
