"""The compiled inner loops: YUV to planar RGB, packed RGB to planar, and separable resizing.

Each works row by row through small buffers of integers, so that LLVM turns the inner loops into vector code. They
release the GIL, allocate nothing and are compiled on first use and kept on disk (`cache=True`).
"""

# Shapes: H height, W width, C channels, O output samples, K taps

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numba
import numpy as np

from trajload.types import NDArray

__all__ = ["deinterleave_rgb", "resize", "warm_up", "yuv420_to_rgb", "yuv444_to_rgb"]

_F = TypeVar("_F")

if TYPE_CHECKING:

    def _compiled(function: _F) -> _F: ...

else:
    _compiled = numba.njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")


# LLVM checks at run time that the arrays of a loop do not overlap, and gives up on loops with many of them. So each
# loop below touches two to four arrays; one loop that wrote all three colours would run four times slower.


@_compiled
def _widen(samples: NDArray, offset: np.int16, out: NDArray, count: int) -> None:
    """Write 8-bit samples as 12-bit numbers less `offset`."""
    for x in range(count):
        out[x] = (np.int16(samples[x]) << np.int16(3)) - offset


@_compiled
def _scale(values: NDArray, gain: np.int16, out: NDArray, count: int) -> None:
    """Write the upper half of the 32-bit products: one instruction (pmulhw) for 16 values."""
    for x in range(count):
        out[x] = np.int16((np.int32(values[x]) * np.int32(gain)) >> np.int32(16))


@_compiled
def _chroma(
    u_row: NDArray, v_row: NDArray, gains: NDArray, red: NDArray, green: NDArray, blue: NDArray, count: int
) -> None:
    """Write what a row of chroma samples adds to each colour."""
    red_v, green_u, green_v, blue_u = np.int16(gains[2]), np.int16(gains[3]), np.int16(gains[4]), np.int16(gains[5])
    for x in range(count):
        v = np.int16((np.int16(v_row[x]) - np.int16(128)) << np.int16(3))
        red[x] = np.int16((np.int32(v) * np.int32(red_v)) >> np.int32(16))
    for x in range(count):
        u = np.int16((np.int16(u_row[x]) - np.int16(128)) << np.int16(3))
        blue[x] = np.int16((np.int32(u) * np.int32(blue_u)) >> np.int32(16))
    for x in range(count):
        u = np.int16((np.int16(u_row[x]) - np.int16(128)) << np.int16(3))
        v = np.int16((np.int16(v_row[x]) - np.int16(128)) << np.int16(3))
        by_u = np.int16((np.int32(u) * np.int32(green_u)) >> np.int32(16))
        by_v = np.int16((np.int32(v) * np.int32(green_v)) >> np.int32(16))
        green[x] = by_u + by_v


@_compiled
def _repeat(values: NDArray, out: NDArray, count: int) -> None:
    for x in range(count):
        out[2 * x] = values[x]
        out[2 * x + 1] = values[x]


@_compiled
def _add_clipped(luma: NDArray, chroma: NDArray, out: NDArray, count: int) -> None:
    for x in range(count):
        out[x] = np.uint8(min(max(np.int16(luma[x] + chroma[x]), np.int16(0)), np.int16(255)))


@_compiled
def yuv420_to_rgb(
    y_plane: NDArray,
    u_plane: NDArray,
    v_plane: NDArray,
    y_stride: int,
    c_stride: int,
    coefficients: NDArray,
    buffer: NDArray,
    out: NDArray,
) -> None:
    """Write planar RGB (3, H, W), H even, from 8-bit 4:2:0 planes, in swscale's own 16-bit arithmetic.

    `buffer` is int16 scratch (8, W + 1); coefficients are `pixels.swscale_coefficients`.
    """
    height, width = out.shape[1], out.shape[2]
    half = (width + 1) >> 1
    gain, offset = np.int16(coefficients[0]), np.int16(coefficients[1])
    red, green, blue, luma = buffer[0], buffer[1], buffer[2], buffer[3]
    half_red, half_green, half_blue, wide = buffer[4], buffer[5], buffer[6], buffer[7]
    for row in range(height):
        if row & 1 == 0:
            start = (row >> 1) * c_stride
            u_row, v_row = u_plane[start : start + half], v_plane[start : start + half]
            _chroma(u_row, v_row, coefficients, half_red, half_green, half_blue, half)
            _repeat(half_red, red, half)
            _repeat(half_green, green, half)
            _repeat(half_blue, blue, half)
        _widen(y_plane[row * y_stride : row * y_stride + width], offset, wide, width)
        _scale(wide, gain, luma, width)
        _add_clipped(luma, red, out[0, row], width)
        _add_clipped(luma, green, out[1, row], width)
        _add_clipped(luma, blue, out[2, row], width)


@_compiled
def _mix(y_row: NDArray, c_row: NDArray, gain: np.int32, c_gain: np.int32, offset: np.int32, out: NDArray) -> None:
    for x in range(len(out)):
        total = np.int32(y_row[x]) * gain + np.int32(c_row[x]) * c_gain + offset
        out[x] = np.uint8(min(max(total >> np.int32(16), np.int32(0)), np.int32(255)))


@_compiled
def _mix_both(
    y_row: NDArray,
    u_row: NDArray,
    v_row: NDArray,
    gain: np.int32,
    u_gain: np.int32,
    v_gain: np.int32,
    offset: np.int32,
    out: NDArray,
) -> None:
    for x in range(len(out)):
        total = np.int32(y_row[x]) * gain + np.int32(u_row[x]) * u_gain + np.int32(v_row[x]) * v_gain + offset
        out[x] = np.uint8(min(max(total >> np.int32(16), np.int32(0)), np.int32(255)))


@_compiled
def yuv444_to_rgb(
    y_plane: NDArray,
    u_plane: NDArray,
    v_plane: NDArray,
    y_stride: int,
    c_stride: int,
    coefficients: NDArray,
    out: NDArray,
) -> None:
    """Write planar RGB (3, H, W) from 8-bit 4:4:4 planes, correctly rounded; see `pixels.yuv_coefficients`."""
    height, width = out.shape[1], out.shape[2]
    gain, offset = coefficients[0], coefficients[1]
    red_v, green_u, green_v, blue_u = coefficients[2], coefficients[3], coefficients[4], coefficients[5]
    mid = np.int32(128)
    for row in range(height):
        y_row = y_plane[row * y_stride : row * y_stride + width]
        u_row = u_plane[row * c_stride : row * c_stride + width]
        v_row = v_plane[row * c_stride : row * c_stride + width]
        _mix(y_row, v_row, gain, red_v, np.int32(offset - mid * red_v), out[0, row])
        _mix_both(
            y_row, u_row, v_row, gain, green_u, green_v, np.int32(offset - mid * (green_u + green_v)), out[1, row]
        )
        _mix(y_row, u_row, gain, blue_u, np.int32(offset - mid * blue_u), out[2, row])


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
def _set_row(line: NDArray, weight: np.int32, out: NDArray, count: int) -> None:
    for x in range(count):
        out[x] = np.int32(weight * np.int32(line[x])) + np.int32(128)


@_compiled
def _add_row(line: NDArray, weight: np.int32, out: NDArray, count: int) -> None:
    for x in range(count):
        out[x] = np.int32(out[x] + np.int32(weight * np.int32(line[x])))


@_compiled
def _shift_row(out: NDArray, count: int) -> None:
    for x in range(count):
        out[x] = out[x] >> np.int32(8)


@_compiled
def _add_tap(row: NDArray, first: NDArray, weight: NDArray, tap: int, out: NDArray, count: int) -> None:
    for x in range(count):
        out[x] = np.int32(out[x] + np.int32(weight[x] * row[first[x] + tap]))


@_compiled
def _store(sums: NDArray, out: NDArray, count: int) -> None:
    for x in range(count):
        out[x] = np.uint8(sums[x] >> np.int32(20))


@_compiled
def resize(
    picture: NDArray,
    first_y: NDArray,
    weight_y: NDArray,
    first_x: NDArray,
    weight_x: NDArray,
    row_buffer: NDArray,
    sum_buffer: NDArray,
    out: NDArray,
) -> None:
    """Write `picture` (C, h, w) uint8, filtered by rows and then by columns, to `out` (C, H, W).

    Weights are (K, O) with 14 bits; the buffer between the passes keeps 6 bits of fraction, and sums stay inside int32.
    Buffers are int32 scratch, (w,) and (W,).
    """
    channels, height, width = out.shape
    width_in = picture.shape[2]
    for c in range(channels):
        for row in range(height):
            first = first_y[row]
            _set_row(picture[c, first], weight_y[0, row], row_buffer, width_in)
            for k in range(1, weight_y.shape[0]):
                if weight_y[k, row] != 0:
                    _add_row(picture[c, first + k], weight_y[k, row], row_buffer, width_in)
            _shift_row(row_buffer, width_in)
            for x in range(width):
                sum_buffer[x] = np.int32(1 << 19)
            for k in range(weight_x.shape[0]):
                _add_tap(row_buffer, first_x, weight_x[k], k, sum_buffer, width)
            _store(sum_buffer, out[c, row], width)


def warm_up() -> None:
    """Compile every kernel, or load it from disk, so that the first window does not wait for it."""
    plane = np.zeros(4, np.uint8)
    rgb = np.zeros((3, 2, 2), np.uint8)
    coefficients = np.zeros(6, np.int32)
    yuv420_to_rgb(plane, plane, plane, 2, 2, coefficients, np.zeros((8, 3), np.int16), rgb)
    yuv444_to_rgb(plane, plane, plane, 2, 2, coefficients, rgb)
    deinterleave_rgb(np.zeros(12, np.uint8), 6, rgb)
    first, weight = np.zeros(2, np.int32), np.full((1, 2), 1 << 14, np.int32)
    row = np.zeros(2, np.int32)
    resize(rgb, first, weight, first, weight, row, row.copy(), np.zeros((3, 2, 2), np.uint8))
