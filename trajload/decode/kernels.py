"""The compiled inner loops: YUV to planar RGB, packed RGB to planar, and separable resizing.

Each works row by row through a small buffer, in int32, so that LLVM turns the inner loops into vector code. They
release the GIL, allocate nothing and are compiled on first use and kept on disk (`cache=True`).
"""

# Shapes: H height, W width, C channels, O output samples, K taps

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numba
import numpy as np

from trajload.types import NDArray

__all__ = ["deinterleave_rgb", "resize", "yuv_to_rgb"]

_F = TypeVar("_F")

if TYPE_CHECKING:

    def _compiled(function: _F) -> _F: ...

else:
    _compiled = numba.njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")


@_compiled
def yuv_to_rgb(
    y_plane: NDArray,
    u_plane: NDArray,
    v_plane: NDArray,
    y_stride: int,
    c_stride: int,
    shift_x: int,
    shift_y: int,
    coefficients: NDArray,
    buffer: NDArray,
    out: NDArray,
) -> None:
    """Write planar RGB (3, H, W) from 8-bit planes; chroma samples are repeated, as swscale does without scaling.

    `buffer` is int32 scratch (3, W + 1). Coefficients have 16 fraction bits: see `pixels.yuv_coefficients`.
    """
    height, width = out.shape[1], out.shape[2]
    gain, offset = coefficients[0], coefficients[1]
    red_v, green_u, green_v, blue_u = coefficients[2], coefficients[3], coefficients[4], coefficients[5]
    red, green, blue = buffer[0], buffer[1], buffer[2]
    chroma_width = (width + shift_x) >> shift_x
    previous = -1
    for row in range(height):
        chroma_row = row >> shift_y
        if chroma_row != previous:
            previous = chroma_row
            u_row = u_plane[chroma_row * c_stride : chroma_row * c_stride + chroma_width]
            v_row = v_plane[chroma_row * c_stride : chroma_row * c_stride + chroma_width]
            if shift_x == 0:
                for x in range(chroma_width):
                    u = np.int32(u_row[x]) - np.int32(128)
                    v = np.int32(v_row[x]) - np.int32(128)
                    red[x] = red_v * v + offset
                    green[x] = green_u * u + green_v * v + offset
                    blue[x] = blue_u * u + offset
            else:
                for x in range(chroma_width):
                    u = np.int32(u_row[x]) - np.int32(128)
                    v = np.int32(v_row[x]) - np.int32(128)
                    r = np.int32(red_v * v + offset)
                    g = np.int32(green_u * u + green_v * v + offset)
                    b = np.int32(blue_u * u + offset)
                    red[2 * x] = r
                    red[2 * x + 1] = r
                    green[2 * x] = g
                    green[2 * x + 1] = g
                    blue[2 * x] = b
                    blue[2 * x + 1] = b
        y_row = y_plane[row * y_stride : row * y_stride + width]
        red_row, green_row, blue_row = out[0, row], out[1, row], out[2, row]
        for x in range(width):
            luma = np.int32(y_row[x]) * gain
            red_row[x] = min(max((luma + red[x]) >> np.int32(16), np.int32(0)), np.int32(255))
            green_row[x] = min(max((luma + green[x]) >> np.int32(16), np.int32(0)), np.int32(255))
            blue_row[x] = min(max((luma + blue[x]) >> np.int32(16), np.int32(0)), np.int32(255))


@_compiled
def deinterleave_rgb(packed: NDArray, stride: int, out: NDArray) -> None:
    """Write planar (3, H, W) from rows of packed 8-bit RGB that stand `stride` bytes apart."""
    height, width = out.shape[1], out.shape[2]
    for row in range(height):
        start = row * stride
        line = packed[start : start + 3 * width]
        red_row, green_row, blue_row = out[0, row], out[1, row], out[2, row]
        for x in range(width):
            red_row[x] = line[3 * x]
            green_row[x] = line[3 * x + 1]
            blue_row[x] = line[3 * x + 2]


@_compiled
def resize(
    picture: NDArray,
    first_y: NDArray,
    weight_y: NDArray,
    first_x: NDArray,
    weight_x: NDArray,
    buffer: NDArray,
    out: NDArray,
) -> None:
    """Write `picture` (C, h, w) uint8, filtered by rows and then by columns, to `out` (C, H, W).

    Weights have 14 bits; the buffer between the passes keeps 6 bits of fraction, and sums stay inside int32.
    """
    channels, height, width = out.shape
    width_in = picture.shape[2]
    taps_y, taps_x = weight_y.shape[1], weight_x.shape[1]
    for c in range(channels):
        for row in range(height):
            first = first_y[row]
            line = picture[c, first]
            weight = weight_y[row, 0]
            for x in range(width_in):
                buffer[x] = weight * np.int32(line[x]) + np.int32(128)
            for k in range(1, taps_y):
                weight = weight_y[row, k]
                if weight == 0:
                    continue
                line = picture[c, first + k]
                for x in range(width_in):
                    buffer[x] += weight * np.int32(line[x])
            for x in range(width_in):
                buffer[x] >>= np.int32(8)
            out_row = out[c, row]
            for x in range(width):
                total = np.int32(1 << 19)
                start = first_x[x]
                for k in range(taps_x):
                    total += weight_x[x, k] * buffer[start + k]
                out_row[x] = total >> np.int32(20)


def warm_up() -> dict[str, Any]:
    """Compile (or load) every kernel once; returns nothing of use but the names, for logs."""
    plane = np.zeros(4, np.uint8)
    rgb = np.zeros((3, 2, 2), np.uint8)
    yuv_to_rgb(plane, plane, plane, 2, 2, 1, 1, np.zeros(6, np.int32), np.zeros((3, 3), np.int32), rgb)
    deinterleave_rgb(np.zeros(12, np.uint8), 6, rgb)
    axis = np.zeros(2, np.int32), np.full((2, 1), 1 << 14, np.int32)
    resize(rgb, *axis, *axis, np.zeros(2, np.int32), np.zeros((3, 2, 2), np.uint8))
    return {"kernels": __all__}
