"""The compiled copy from decoded blocks into rows of a batch: whole rows of pictures, without the GIL."""

# Shapes: R windows, T places

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from trajload.jit import compiled
from trajload.types import NDArray

__all__ = ["copy_windows"]


if TYPE_CHECKING:

    def intrinsic(function: Any) -> Any: ...

else:
    from numba.extending import intrinsic


_BYTE, _I64 = ir.IntType(8), ir.IntType(64)
_VECTOR_BYTES = 32
_MIN_STREAMED_BYTES = 2 << 20


@intrinsic
def _copy(typing_context: Any, to: Any, source: Any, size: Any) -> Any:
    """memcpy by address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from numba.core import cgutils

        pointers = [builder.inttoptr(arg, _BYTE.as_pointer()) for arg in args[:2]]
        cgutils.raw_memcpy(builder, pointers[0], pointers[1], args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _copy_past_caches(typing_context: Any, to: Any, source: Any) -> Any:
    """Copy `_VECTOR_BYTES` to an address that is a multiple of them, without reading the line that is written."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(_I64, _VECTOR_BYTES // 8)
        to, source = (builder.inttoptr(arg, vector.as_pointer()) for arg in args)
        store = builder.store(builder.load(source, align=1), to, align=_VECTOR_BYTES)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _fence(typing_context: Any) -> Any:
    """Let all that was written past the caches be seen before what is written next."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@compiled
def _stream(to: int, source: int, size: int) -> None:
    """Copy as `_copy` does, past the caches."""
    head = min(-to % _VECTOR_BYTES, size)
    if head:
        _copy(to, source, head)
    i = head
    while i + 4 * _VECTOR_BYTES <= size:
        for k in range(4):
            _copy_past_caches(to + i + k * _VECTOR_BYTES, source + i + k * _VECTOR_BYTES)
        i += 4 * _VECTOR_BYTES
    if i < size:
        _copy(to + i, source + i, size - i)


@compiled
def copy_windows(to_R: NDArray, source_R: NDArray, place_RT: NDArray, row_bytes: int) -> None:
    """Write place t of window r from row `place_RT[r, t]` of its block, neighbouring rows in one go.

    Args:
        to_R: Address of each window's memory, T rows.
        source_R: Address of each window's block.
        place_RT: Rows of the blocks.
        row_bytes: Bytes of one row.
    """
    num_places = place_RT.shape[1]
    # What the caches cannot hold until it is read is a third faster past them; what they can is not pushed out.
    is_large = place_RT.size * row_bytes >= _MIN_STREAMED_BYTES
    for r in range(place_RT.shape[0]):
        t = 0
        while t < num_places:
            stop = t + 1
            while stop < num_places and place_RT[r, stop] == place_RT[r, stop - 1] + 1:
                stop += 1
            to, source = to_R[r] + t * row_bytes, source_R[r] + place_RT[r, t] * row_bytes
            if is_large:
                _stream(to, source, (stop - t) * row_bytes)
            else:
                _copy(to, source, (stop - t) * row_bytes)
            t = stop
    if is_large:
        _fence()
