"""The compiled inner loops of colour changes and blur. They release the GIL, allocate nothing and work in integers."""

# Shapes: H height, W width, C channels, K taps

from __future__ import annotations

import numpy as np

from trajload.jit import compiled
from trajload.types import NDArray

__all__ = ["blur", "luma_sum", "mix_colours"]


@compiled
def luma_sum(picture_3HW: NDArray) -> np.int64:
    """Return the sum of luma over a picture of bytes, in units of 2**-14."""
    total = np.int64(0)
    for c in range(3):
        weight = np.int64(4899) if c == 0 else np.int64(9617) if c == 1 else np.int64(1868)
        for y in range(picture_3HW.shape[1]):
            row = picture_3HW[c, y]
            part = np.int32(0)
            for x in range(row.shape[0]):
                part += np.int32(row[x])
            total += weight * part
    return total


@compiled
def _mix_row(r: NDArray, g: NDArray, b: NDArray, a0: int, a1: int, a2: int, add: np.int32, out: NDArray) -> None:
    for x in range(out.shape[0]):
        value = (a0 * np.int32(r[x]) + a1 * np.int32(g[x]) + a2 * np.int32(b[x]) + add) >> np.int32(14)
        out[x] = np.uint8(min(max(value, np.int32(0)), np.int32(255)))


@compiled
def mix_colours(picture_3HW: NDArray, matrix: NDArray, offset: int, buffer_3W: NDArray) -> None:
    """Replace a picture of bytes by matrix · rgb + offset, both of 14 bits, rounded half up and clipped.

    The buffer takes a row at a time: loops that write where they read are not turned into vector code.
    """
    add = np.int32(offset + (1 << 13))
    for y in range(picture_3HW.shape[1]):
        for c in range(3):
            _mix_row(
                picture_3HW[0, y],
                picture_3HW[1, y],
                picture_3HW[2, y],
                matrix[c, 0],
                matrix[c, 1],
                matrix[c, 2],
                add,
                buffer_3W[c],
            )
        for c in range(3):
            row, done = picture_3HW[c, y], buffer_3W[c]
            for x in range(row.shape[0]):
                row[x] = done[x]


@compiled
def _add_scaled(line: NDArray, weight: np.int32, out: NDArray) -> None:
    for x in range(out.shape[0]):
        out[x] = np.int32(out[x] + np.int32(weight * np.int32(line[x])))


@compiled
def blur(picture_CHW: NDArray, weight_K: NDArray, row_buffer: NDArray, sum_buffer: NDArray, out_CHW: NDArray) -> None:
    """Write a picture of bytes, filtered by `weight_K` (odd K, 14 bits) along columns and then rows, to `out_CHW`.

    Beyond the picture its edge repeats. The buffer between the passes keeps 6 bits of fraction. Buffers are int32
    scratch, (W + K - 1,) and (W,).
    """
    channels, height, width = picture_CHW.shape
    taps = weight_K.shape[0]
    reach = taps // 2
    inner = row_buffer[reach : reach + width]
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                inner[x] = np.int32(128)
            for k in range(taps):
                _add_scaled(picture_CHW[c, min(max(y + k - reach, 0), height - 1)], weight_K[k], inner)
            for x in range(width):
                inner[x] = inner[x] >> np.int32(8)
            for x in range(reach):
                row_buffer[x] = inner[0]
                row_buffer[reach + width + x] = inner[width - 1]
            for x in range(width):
                sum_buffer[x] = np.int32(1 << 19)
            for k in range(taps):
                _add_scaled(row_buffer[k : k + width], weight_K[k], sum_buffer)
            row = out_CHW[c, y]
            for x in range(width):
                row[x] = np.uint8(sum_buffer[x] >> np.int32(20))
