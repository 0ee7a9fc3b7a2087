"""Helpers for tests of what is in a checkpoint: write a state into a real store, and compare states exactly."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trajload.checkpoint.capture import Snapshot, snapshot
from trajload.checkpoint.entries import Commit
from trajload.checkpoint.reader import PartReader
from trajload.checkpoint.store import Store


def write(store: Store, held: Snapshot, step: int = 0) -> Commit:
    """Commit the files of a snapshot."""
    with store.writer():
        generation = store.begin(step)
        part = generation.part(0)
        for planned in held.files():
            assert part.write(planned.name, planned.chunks()).bytes == planned.bytes
        return store.commit(generation, [part.finish()], {})


def keep(store: Store, state: Mapping[str, Any], *, copy: bool = True) -> PartReader:
    """Save a state and return the part that holds it."""
    return store.part(write(store, snapshot(state, copy=copy)), 0)


def assert_same(one: Any, other: Any, path: str = "state") -> None:
    """Fail unless two states are equal in every type and bit; NaNs are compared by their bits."""
    assert type(one) is type(other), f"{path}: {type(one)} and {type(other)}"
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device), path
        if one.numel():
            assert bits(one) == bits(other), path
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert one.tobytes() == other.tobytes(), path
    elif isinstance(one, np.generic) and not isinstance(one, (np.str_, np.bytes_)):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes()), path
    elif isinstance(one, Mapping):
        assert list(map(_shown, one)) == list(map(_shown, other)), path
        for (key, a), b in zip(one.items(), other.values(), strict=True):
            assert_same(a, b, f"{path}[{_shown(key)}]")
    elif isinstance(one, (set, frozenset)):
        assert sorted(map(repr, one)) == sorted(map(repr, other)), path
    elif isinstance(one, (list, tuple)) or hasattr(one, "maxlen"):
        assert len(one) == len(other) and getattr(one, "maxlen", 0) == getattr(other, "maxlen", 0), path
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(one, complex):
        assert struct.pack(">dd", one.real, one.imag) == struct.pack(">dd", other.real, other.imag), path
    elif isinstance(one, float) and math.isnan(one):
        assert struct.pack(">d", one) == struct.pack(">d", other), path
    else:
        assert one == other and _shown(one) == _shown(other), path


def _shown(value: Any) -> str:
    return hex(value) if type(value) is int else repr(value)


def bits(tensor: torch.Tensor) -> bytes:
    """Return a tensor's elements as bytes, in C order."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype.itemsize == 1:
        plain = plain.view(torch.uint8)
    return plain.contiguous().as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
