"""Tensors as a safetensors file, written as a stream: the header, then the bytes of one tensor after the other.

The layout is that of the format: 8 bytes with the length of the header, the header as JSON, raw little-endian bytes. Where
the format lacks a word, the header's `__metadata__` says it, under the key `trajload`, and other readers may ignore it:

- `same`: names that are one tensor (tied weights) stand in the file once.
- `strides`: tensors that were dense in another order than C (channels_last, a transpose) get it back, since sums over
  them would otherwise run in another order and round differently.
- `raw`: dtypes unknown to the format (complex128, 4-bit ones) stand as their bytes.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from trajload.errors import CheckpointError

__all__ = [
    "FORMAT_NAMES",
    "METADATA_KEY",
    "Layout",
    "check_tensor",
    "dense_strides",
    "no_data",
    "plan_layout",
    "planned_bytes",
    "same_tensor_key",
    "tensor_bytes",
    "tensor_chunks",
]

METADATA_KEY = "trajload"
MAX_HEADER_BYTES = 100_000_000
"""What the format's own readers accept."""

FORMAT_NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
"""dtypes that the format, and the readers of it that people have, know by name."""

_PAIRS = {torch.complex128: "F64", torch.complex32: "F16"}
"""Complex numbers that the format has no name for stand as pairs, with a last axis of 2."""

_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file of tensors will look, to the byte."""

    header: bytes
    """With its length in front and spaces behind, so that the first tensor is aligned."""
    names: tuple[str, ...]
    """Of the tensors whose bytes follow, in order; aliases are not among them."""
    bytes: int
    """Of the whole file."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return 'float32' of torch.float32."""
    return str(dtype).removeprefix("torch.")


def check_tensor(tensor: Tensor, path: str) -> None:
    """Raise CheckpointError where a tensor is of a kind whose value is more than its bytes.

    Args:
        tensor: Any.
        path: Where it stands, for the message.
    """
    kind = type(tensor)
    if kind.__name__ == "DTensor" or hasattr(tensor, "device_mesh"):
        raise CheckpointError(
            f"{path} is a DTensor: one rank holds only its part of it. Sharded tensors are saved as a component of the Checkpointer's "
            "`state`, not of `rank_state`, and not by `snapshot` or `audit`."
        )
    if isinstance(tensor, UninitializedTensorMixin):
        raise CheckpointError(f"{path} has no shape yet: run one batch through the module before saving.")
    if kind not in _PLAIN_TYPES:
        raise CheckpointError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}: expected a plain torch.Tensor. Put its plain tensors into the "
            "state, or give the object state_dict() and load_state_dict()."
        )
    if tensor.layout != torch.strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else dtype_name(tensor.layout)  # type: ignore[arg-type]
        raise CheckpointError(
            f"{path} is a {layout} tensor: expected a dense one. Save its values and indices instead."
        )
    if tensor.is_quantized:
        raise CheckpointError(
            f"{path} has the quantised dtype {dtype_name(tensor.dtype)}: expected a dtype whose bytes are its value. "
            "Save int_repr(), scale and zero point."
        )


def no_data(what: str) -> CheckpointError:
    """Return the error of a tensor on the meta device."""
    return CheckpointError(
        f"{what} is on the meta device and has no data: give it memory first (`module.to_empty(device=...)`, then load or initialise)."
    )


def dense_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a tensor that fills its memory without holes, but not in C order; else None."""
    if tensor.is_contiguous():
        return None
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return None
        expected *= size
    return tensor.stride()


def same_tensor_key(tensor: Tensor) -> tuple[Any, ...] | None:
    """Return a key that two tensors share if they are one: same memory, shape, strides and dtype. None where empty.

    Valid only while the tensors are alive.
    """
    if tensor.numel() == 0:
        return None
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset()) if tensor.is_meta else tensor.data_ptr()
    return (place, tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())


def _entry(tensor: Tensor) -> tuple[str, list[int], bool]:
    """Return name of the dtype in the format, shape in the file, and whether that is not the tensor's own."""
    dtype, shape = tensor.dtype, list(tensor.shape)
    if dtype in FORMAT_NAMES:
        return FORMAT_NAMES[dtype], shape, False
    if dtype in _PAIRS:
        return _PAIRS[dtype], [*shape, 2], True
    return "U8", [tensor.numel() * dtype.itemsize], True


def plan_layout(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Layout:
    """Return the header of the file that `tensor_chunks` writes, and its size; meta tensors will do.

    Args:
        tensors: By name.
        metadata: More for `__metadata__`, where other readers look.

    Raises:
        CheckpointError: A tensor is of a kind that cannot be kept, or there are too many names.
    """
    first: dict[tuple[Any, ...], str] = {}
    notes: dict[str, dict[str, Any]] = {"same": {}, "strides": {}, "raw": {}}
    own: list[str] = []
    for name, tensor in tensors.items():
        check_tensor(tensor, name)
        key = same_tensor_key(tensor)
        if key is not None and first.setdefault(key, name) != name:
            notes["same"][name] = first[key]
            continue
        own.append(name)
        if (strides := dense_strides(tensor)) is not None:
            notes["strides"][name] = list(strides)
    # Wide elements first: then every tensor begins at a multiple of its element size.
    own.sort(key=lambda name: -tensors[name].dtype.itemsize)
    entries: dict[str, Any] = {}
    at = 0
    for name in own:
        tensor = tensors[name]
        format_name, shape, is_raw = _entry(tensor)
        size = tensor.numel() * tensor.dtype.itemsize
        if is_raw:
            notes["raw"][name] = [dtype_name(tensor.dtype), list(tensor.shape)]
        entries[name] = {"dtype": format_name, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    told = {"format": "pt", **(metadata or {})}
    if said := {word: value for word, value in notes.items() if value}:
        told[METADATA_KEY] = json.dumps(said, separators=(",", ":"))
    text = json.dumps({"__metadata__": told, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{len(own)} tensors need a header of {len(text)} bytes: the format allows {MAX_HEADER_BYTES}. "
            "Divide the component, or join small tensors."
        )
    header = struct.pack("<Q", len(text)) + text
    return Layout(header, tuple(own), len(header) + at)


def planned_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the exact size of the file that `tensor_chunks` gives."""
    return plan_layout(tensors).bytes


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in C order; a view where it is contiguous on the CPU, else a copy of this one tensor."""
    if tensor.is_meta:
        raise no_data("a tensor")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.dtype.itemsize == 1:
        tensor = tensor.view(torch.uint8)  # 4-bit dtypes can be copied as bytes only
    # Not reshape: one element may have any stride and counts as contiguous all the same.
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def tensor_chunks(tensors: Mapping[str, Tensor], layout: Layout | None = None) -> Iterator[bytes | memoryview]:
    """Yield the file, piece by piece; at most one tensor is in memory twice at a time.

    Args:
        tensors: Not changed, and not to be changed before the last piece has been taken.
        layout: From `plan_layout` of the same tensors, where that is known already.
    """
    if sys.byteorder != "little":
        raise CheckpointError("tensors are stored little-endian: this machine is big-endian, which is not supported.")
    if layout is None:
        layout = plan_layout(tensors)
    yield layout.header
    for name in layout.names:
        if tensors[name].numel():
            yield tensor_bytes(tensors[name])
