"""The compiled copy from decoded blocks into rows of a batch: whole rows of pictures, without the GIL."""

# Shapes: R windows, T places

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types

from trajload.jit import loaded_quickly
from trajload.types import NDArray

__all__ = ["copy_windows"]

_F = TypeVar("_F")

if TYPE_CHECKING:

    def _compiled(function: _F) -> _F: ...
    def intrinsic(function: Any) -> Any: ...

else:
    from numba.extending import intrinsic

    def _compiled(function):
        options = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy"}
        return loaded_quickly(numba.njit(**options)(function))


_BYTE, _I64 = ir.IntType(8), ir.IntType(64)


@intrinsic
def _copy(typing_context: Any, to: Any, source: Any, size: Any) -> Any:
    """memcpy by address: libc's, which knows when to write past the caches."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        from numba.core import cgutils

        pointers = [builder.inttoptr(arg, _BYTE.as_pointer()) for arg in args[:2]]
        cgutils.raw_memcpy(builder, pointers[0], pointers[1], args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_compiled
def copy_windows(to_R: NDArray, source_R: NDArray, place_RT: NDArray, row_bytes: int) -> None:
    """Write place t of window r from row `place_RT[r, t]` of its block, neighbouring rows in one go.

    Args:
        to_R: Address of each window's memory, T rows.
        source_R: Address of each window's block.
        place_RT: Rows of the blocks.
        row_bytes: Bytes of one row.
    """
    num_places = place_RT.shape[1]
    for r in range(place_RT.shape[0]):
        t = 0
        while t < num_places:
            stop = t + 1
            while stop < num_places and place_RT[r, stop] == place_RT[r, stop - 1] + 1:
                stop += 1
            _copy(to_R[r] + t * row_bytes, source_R[r] + place_RT[r, t] * row_bytes, (stop - t) * row_bytes)
            t = stop
