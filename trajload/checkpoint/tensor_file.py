"""Reading safetensors files: what is in them, checked against the size of the file, and tensors of their own memory.

Not by the safetensors package: files are not mapped (a mapped file that is cut short kills the process), errors are ours,
and what our own header adds (tensors that are one, strides, further dtypes) is honoured. Any file of the format can be read.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

from trajload.checkpoint.tensors import FORMAT_NAMES, MAX_HEADER_BYTES, METADATA_KEY, dtype_name
from trajload.errors import CheckpointCorruptError, CheckpointMismatchError
from trajload.types import PathLikeStr

__all__ = ["TensorFacts", "TensorFile", "TensorIndex", "refuse_pickle"]

_DTYPES = {name: dtype for dtype, name in FORMAT_NAMES.items()}
_PAIR_DTYPES = {"F64": torch.complex128, "F16": torch.complex32}
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How a file of torch.save (a zip, or a bare pickle in its old form) and other pickles begin."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is known of a tensor without its values."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"

    @classmethod
    def of(cls, tensor: Tensor) -> TensorFacts:
        return cls(dtype_name(tensor.dtype), tuple(tensor.shape))


@dataclass(frozen=True, slots=True)
class _Place:
    facts: TensorFacts
    dtype: torch.dtype
    begin: int
    end: int
    strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class TensorIndex:
    """The header of a file, checked."""

    places: Mapping[str, _Place]
    same: Mapping[str, str]
    """{alias: name of the tensor it is}."""

    def facts(self) -> dict[str, TensorFacts]:
        """Return what each name holds, aliases included."""
        own = {name: place.facts for name, place in self.places.items()}
        return {**own, **{alias: own[name] for alias, name in self.same.items()}}


def refuse_pickle(begin: bytes, what: str) -> None:
    """Raise CheckpointMismatchError if these first bytes of a file are those of a pickle."""
    if begin.startswith(_PICKLES):
        kind = "a zip, as torch.save writes it," if begin.startswith(b"PK") else "a pickle"
        raise CheckpointMismatchError(
            f"{what} is {kind} where safetensors was expected: pickles can run code and are never loaded. Load it yourself "
            "with torch.load(..., weights_only=True), load that into the model, and save anew."
        )


class TensorFile:
    """One file, open for reading. Use as a context manager.

    Raises:
        CheckpointMismatchError: It is a pickle.
        CheckpointCorruptError: It is no safetensors file, or is cut short.
    """

    def __init__(self, path: PathLikeStr, *, name: str | None = None) -> None:
        self.name = name or os.fspath(path)
        try:
            self._handle: BinaryIO = open(path, "rb")  # noqa: SIM115 - closed by __exit__
        except OSError as err:
            raise CheckpointCorruptError(f"{self.name} cannot be opened: {err.strerror or err}.") from err
        try:
            self.index = self._read_index()
        except BaseException:
            self._handle.close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self._handle.close()

    def read(self, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """Return tensors by name, in memory of their own; names that are one tensor give one object."""
        wanted = self.index.facts() if names is None else names
        own = {self.index.same.get(name, name) for name in wanted}
        order = sorted(own, key=lambda name: self.index.places[name].begin)
        found = {name: self._tensor(self.index.places[name], name) for name in order}
        return {name: found[self.index.same.get(name, name)] for name in wanted}

    def _tensor(self, place: _Place, name: str) -> Tensor:
        flat = torch.empty(place.end - place.begin, dtype=torch.uint8)
        into = flat.numpy().data if flat.numel() else memoryview(b"")
        self._handle.seek(self._data + place.begin)
        done = 0
        while done < len(into):
            got = self._read_into(into[done:])
            if not got:
                raise CheckpointCorruptError(
                    f"{self.name}: tensor {name!r} is cut short after {done} of {len(into)} bytes."
                )
            done += got
        shape, dtype = place.facts.shape, place.dtype
        tensor = flat.view(dtype).reshape(shape) if flat.numel() else torch.empty(shape, dtype=dtype)
        if place.strides is None:
            return tensor
        out = torch.empty_strided(shape, place.strides, dtype=dtype)
        if dtype.itemsize == 1:
            out.view(torch.uint8).copy_(tensor.view(torch.uint8))
        else:
            out.copy_(tensor)
        return out

    def _read_into(self, into: memoryview) -> int:
        try:
            return self._handle.readinto(into)  # type: ignore[attr-defined, no-any-return]
        except OSError as err:
            raise CheckpointCorruptError(f"{self.name} cannot be read: {err.strerror or err}.") from err

    # ---- the header ----

    def _bad(self, what: str) -> CheckpointCorruptError:
        return CheckpointCorruptError(f"{self.name} is not a whole safetensors file: {what}. Use another checkpoint.")

    def _read_index(self) -> TensorIndex:
        size = os.fstat(self._handle.fileno()).st_size
        begin = self._handle.read(8)
        if len(begin) < 8:
            refuse_pickle(begin, self.name)
            raise self._bad(f"it has {size} bytes, expected at least 8")
        (length,) = struct.unpack("<Q", begin)
        # Only what is no header is looked at as a pickle: a header of 1,152 bytes begins like one.
        if self._handle.read(1) != b"{":
            refuse_pickle(begin, self.name)
        self._handle.seek(8)
        if length > min(MAX_HEADER_BYTES, size - 8):
            refuse_pickle(begin, self.name)
            raise self._bad(f"its header is said to have {length} bytes, of {size} in all")
        try:
            header = json.loads(self._handle.read(length), object_pairs_hook=self._unique)
        except (ValueError, RecursionError) as err:
            raise self._bad(f"its header cannot be read ({err})") from err
        if not isinstance(header, dict):
            raise self._bad("its header is no JSON object")
        self._data = 8 + length
        notes = self._notes(header.pop("__metadata__", {}))
        places = {name: self._place(name, entry, notes) for name, entry in header.items()}
        at = 0
        for name, place in sorted(places.items(), key=lambda item: (item[1].begin, item[1].end)):
            if place.begin != at:
                raise self._bad(f"tensor {name!r} begins at byte {place.begin} of the data, expected {at}")
            at = place.end
        if at != size - self._data:
            raise self._bad(f"it has {size - self._data} bytes of data, its header tells of {at}")
        same = notes["same"]
        for alias, name in same.items():
            if alias in places or name not in places:
                raise self._bad(f"{alias!r} is said to be the same tensor as {name!r}")
        return TensorIndex(places, same)

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name stands in it twice")
        return found

    def _notes(self, metadata: Any) -> dict[str, dict[str, Any]]:
        if not isinstance(metadata, dict):
            raise self._bad("its __metadata__ is no object")
        try:
            said = json.loads(metadata.get(METADATA_KEY, "{}"))
            notes = {word: dict(said.get(word, {})) for word in ("same", "strides", "raw")}
        except (ValueError, TypeError, AttributeError, RecursionError) as err:
            raise self._bad(f"its __metadata__ cannot be read ({err})") from err
        if not all(isinstance(name, str) for name in notes["same"].values()):
            raise self._bad("its __metadata__ has names that are none")
        return notes

    def _place(self, name: str, entry: Any, notes: Mapping[str, Mapping[str, Any]]) -> _Place:
        try:
            format_name, stored = entry["dtype"], _sizes(entry["shape"])
            begin, end = _sizes(entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as err:
            raise self._bad(f"the entry of {name!r} cannot be read ({err})") from err
        if format_name not in _DTYPES:
            raise self._bad(f"tensor {name!r} has the dtype {format_name!r}, which this version does not know")
        if end - begin != math.prod(stored) * _DTYPES[format_name].itemsize:
            raise self._bad(f"tensor {name!r} has {end - begin} bytes, not those of {format_name} {list(stored)}")
        dtype, shape = _DTYPES[format_name], stored
        try:
            if name in notes["raw"]:
                dtype, shape = _true_kind(notes["raw"][name], format_name)
            strides = _sizes(notes["strides"][name]) if name in notes["strides"] else None
        except (KeyError, TypeError, ValueError) as err:
            raise self._bad(f"what is said of {name!r} cannot be read ({err})") from err
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise self._bad(f"tensor {name!r} has {end - begin} bytes, not those of {dtype_name(dtype)} {list(shape)}")
        if strides is not None and not _fits(shape, strides):
            raise self._bad(f"tensor {name!r} of shape {list(shape)} cannot have the strides {list(strides)}")
        return _Place(TensorFacts(dtype_name(dtype), shape), dtype, begin, end, strides)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 2**62 for n in value):
        raise ValueError(f"expected a list of sizes, got {str(value)[:80]}")
    return tuple(value)


def _true_kind(said: Any, format_name: str) -> tuple[torch.dtype, tuple[int, ...]]:
    name, shape = said
    # Not getattr: torch imports modules for some names.
    dtype = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype) or name.startswith("q"):
        raise ValueError(f"this torch has no dtype {str(name)[:80]!r}")
    if format_name != "U8" and _PAIR_DTYPES.get(format_name) != dtype:
        raise ValueError(f"{format_name} does not hold {name}")
    return dtype, _sizes(shape)


def _fits(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the strides fill memory without holes, as `dense_strides` promises."""
    if len(shape) != len(strides):
        return False
    expected = 1
    for stride, size in sorted((t, n) for t, n in zip(strides, shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True
