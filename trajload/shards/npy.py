"""npy headers padded to 512 bytes, so that in a tar the rows of an array start on a block of their own."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from trajload.errors import ShardCorruptError

__all__ = ["npy_header", "parse_npy_header"]

_ALIGN = 512
_MAX_HEADER_BYTES = 1 << 16


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
    try:
        if data[:6] != b"\x93NUMPY" or len(data) < 12:
            raise ValueError("got other bytes than those an npy file begins with")
        length_bytes = 2 if data[6] == 1 else 4
        start = 8 + length_bytes
        size = start + int.from_bytes(data[8:start], "little")
        if size > min(len(data), _MAX_HEADER_BYTES):
            raise ValueError(f"got a length of {size} bytes, expected at most {min(len(data), _MAX_HEADER_BYTES)}")
        # literal_eval reads constants only; what NumPy's own parser adds is leniency towards Python 2.
        fields = ast.literal_eval(data[start:size].decode("latin1").strip())
        dtype, fortran_order, shape = np.dtype(fields["descr"]), bool(fields["fortran_order"]), tuple(fields["shape"])
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"got shape {shape!r}")
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as err:
        raise ShardCorruptError(f"npy header unusable: {err}. Run 'trajload verify'.") from err
    if dtype.hasobject or (fortran_order and len(shape) > 1):
        raise ShardCorruptError(
            f"npy header unusable: got dtype {dtype} with fortran_order={fortran_order}, expected plain numbers in C order."
        )
    return size, dtype, shape
