"""npy headers padded to 512 bytes, so that in a tar the rows of an array start on a block of their own."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from trajload.errors import ShardCorruptError

__all__ = ["npy_header", "parse_npy_header"]

_ALIGN = 512


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a little-endian C-ordered npy file (version 1.0), a multiple of 512 bytes long."""
    text = repr({"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}).encode("ascii")
    size = 10 + len(text) + 1
    size += -size % _ALIGN
    return b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + text.ljust(size - 11, b" ") + b"\n"


def parse_npy_header(data: bytes) -> tuple[int, np.dtype[Any], tuple[int, ...]]:
    """Return (header size, dtype, shape) of the npy file that begins with `data`. Nothing in it is executed.

    Raises:
        ShardCorruptError: Not an npy header, Fortran order, or a dtype of Python objects.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(stream)
    except (ValueError, SyntaxError, RecursionError) as err:
        raise ShardCorruptError(f"npy header unusable: {err}. Run 'trajload verify'.") from err
    if dtype.hasobject or (fortran_order and len(shape) > 1):
        raise ShardCorruptError(
            f"npy header unusable: got dtype {dtype} with fortran_order={fortran_order}, expected plain numbers in C order."
        )
    return stream.tell(), dtype, shape
