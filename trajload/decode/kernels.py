"""The compiled inner loops: YUV to planar RGB, packed RGB to planar, and separable resizing.

The bulk goes through the vector steps of `vectors.py`, edges through plain loops of the same integer arithmetic. They
release the GIL, allocate nothing and are compiled on first use and kept on disk (`cache=True`).
"""

# Shapes: H height, W width, C channels, O output samples, K taps

from __future__ import annotations

import numpy as np

from trajload.decode.vectors import (
    PIXELS_AT_ONCE,
    SAMPLES_AT_ONCE,
    SUMS_AT_ONCE,
    TAPS_AT_ONCE,
    address_of,
    convert_two_rows,
    mix_columns,
    mix_rows,
)
from trajload.jit import compiled
from trajload.types import NDArray

__all__ = ["deinterleave_rgb", "resize", "yuv420_to_rgb", "yuv444_to_rgb"]


@compiled
def _upper_half(value: np.int16, gain: np.int16) -> np.int16:
    return np.int16((np.int32(value) * np.int32(gain)) >> np.int32(16))


@compiled
def _clip(value: np.int16) -> np.uint8:
    return np.uint8(min(max(value, np.int16(0)), np.int16(255)))


@compiled
def yuv420_to_rgb(
    y_plane: NDArray,
    u_plane: NDArray,
    v_plane: NDArray,
    y_stride: int,
    c_stride: int,
    coefficients: NDArray,
    out: NDArray,
) -> None:
    """Write planar RGB (3, H, W), H even, C-contiguous, from 8-bit 4:2:0 planes, in swscale's own 16-bit arithmetic.

    Coefficients are `pixels.swscale_coefficients`. Planes end no earlier than the last sample of the picture.
    """
    height, width = out.shape[1], out.shape[2]
    gains = (
        np.int16(coefficients[0]),
        np.int16(coefficients[1]),
        np.int16(coefficients[2]),
        np.int16(coefficients[3]),
        np.int16(coefficients[4]),
        np.int16(coefficients[5]),
    )
    y_at, u_at, v_at, out_at = address_of(y_plane), address_of(u_plane), address_of(v_plane), address_of(out)
    in_pairs = width & ~1 if width >= PIXELS_AT_ONCE else 0
    for row in range(0, height, 2):
        y_start, c_start, out_start = row * y_stride, (row >> 1) * c_stride, row * width
        for start in range(0, in_pairs, PIXELS_AT_ONCE):
            # the last step reaches back rather than beyond the row
            x = min(start, in_pairs - PIXELS_AT_ONCE)
            c = c_start + (x >> 1)
            convert_two_rows(
                y_at + y_start + x, y_stride, u_at + c, v_at + c, out_at + out_start + x, width, height * width, gains
            )
        for x in range(in_pairs, width):
            u = np.int16((np.int16(u_plane[c_start + (x >> 1)]) - np.int16(128)) << np.int16(3))
            v = np.int16((np.int16(v_plane[c_start + (x >> 1)]) - np.int16(128)) << np.int16(3))
            red, blue = _upper_half(v, gains[2]), _upper_half(u, gains[5])
            green = np.int16(_upper_half(u, gains[3]) + _upper_half(v, gains[4]))
            for below in range(2):
                y = np.int16((np.int16(y_plane[y_start + below * y_stride + x]) << np.int16(3)) - gains[1])
                luma = _upper_half(y, gains[0])
                out[0, row + below, x] = _clip(np.int16(luma + red))
                out[1, row + below, x] = _clip(np.int16(luma + green))
                out[2, row + below, x] = _clip(np.int16(luma + blue))


@compiled
def _mix(y_row: NDArray, c_row: NDArray, gain: np.int32, c_gain: np.int32, offset: np.int32, out: NDArray) -> None:
    for x in range(len(out)):
        total = np.int32(y_row[x]) * gain + np.int32(c_row[x]) * c_gain + offset
        out[x] = np.uint8(min(max(total >> np.int32(16), np.int32(0)), np.int32(255)))


@compiled
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


@compiled
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


@compiled
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


@compiled
def _mix_rows(picture: NDArray, c: int, first: int, weight_K: NDArray, row_buffer: NDArray) -> None:
    """Write the weighted sums of the rows from `first` on."""
    height, width = picture.shape[1], picture.shape[2]
    pairs = len(weight_K) >> 1
    while pairs > 1 and weight_K[2 * pairs - 1] == 0 and weight_K[2 * pairs - 2] == 0:
        pairs -= 1
    if width < SAMPLES_AT_ONCE or first + 2 * pairs > height:
        for x in range(width):
            total = np.int32(1 << 7)
            for k in range(2 * pairs):
                # weights beyond the picture are 0
                total += np.int32(weight_K[k]) * np.int32(picture[c, min(first + k, height - 1), x])
            row_buffer[x] = np.int16(total >> np.int32(8))
        return
    source, stride = address_of(picture) + c * picture.strides[0] + first * picture.strides[1], picture.strides[1]
    weights, target = address_of(weight_K), address_of(row_buffer)
    last = width - SAMPLES_AT_ONCE
    # The usual numbers of taps are written out: a loop inside the loop costs as much as its work.
    if pairs == 1:
        for start in range(0, width, SAMPLES_AT_ONCE):
            x = min(start, last)
            mix_rows(source + x, stride, weights, 1, target + 2 * x)
    elif pairs == 2:
        for start in range(0, width, SAMPLES_AT_ONCE):
            x = min(start, last)
            mix_rows(source + x, stride, weights, 2, target + 2 * x)
    else:
        for start in range(0, width, SAMPLES_AT_ONCE):
            x = min(start, last)
            mix_rows(source + x, stride, weights, pairs, target + 2 * x)


@compiled
def _mix_columns(row_buffer: NDArray, first_x: NDArray, weight_x: NDArray, out: NDArray) -> None:
    """Write the weighted sums of neighbours in a row of sums to a row of the picture."""
    groups, width = weight_x.shape[0], len(out)
    if width < SUMS_AT_ONCE:
        for x in range(width):
            total = np.int32(1 << 19)
            for k in range(groups * TAPS_AT_ONCE):
                weight = weight_x[k // TAPS_AT_ONCE, x, k % TAPS_AT_ONCE]
                total += np.int32(weight) * np.int32(row_buffer[first_x[x] + k])
            out[x] = np.uint8(total >> np.int32(20))
        return
    source, first, weights = address_of(row_buffer), address_of(first_x), address_of(weight_x)
    next_taps, target = 2 * TAPS_AT_ONCE * width, address_of(out)
    last = width - SUMS_AT_ONCE
    if groups == 1:
        for start in range(0, width, SUMS_AT_ONCE):
            x = min(start, last)
            mix_columns(source, first + 4 * x, weights + 2 * TAPS_AT_ONCE * x, next_taps, 1, target + x)
    else:
        for start in range(0, width, SUMS_AT_ONCE):
            x = min(start, last)
            mix_columns(source, first + 4 * x, weights + 2 * TAPS_AT_ONCE * x, next_taps, groups, target + x)


@compiled
def resize(
    picture: NDArray,
    first_y: NDArray,
    weight_y: NDArray,
    first_x: NDArray,
    weight_x: NDArray,
    row_buffer: NDArray,
    out: NDArray,
) -> None:
    """Write `picture` (C, h, w) uint8, filtered by rows and then by columns, to `out` (C, H, W); both C-contiguous.

    Weights have 14 bits; the int16 buffer between the passes keeps 6 bits of fraction, and sums stay inside int32. For the
    other arguments see `resize.PictureFilter`.
    """
    for c in range(out.shape[0]):
        for row in range(out.shape[1]):
            _mix_rows(picture, c, first_y[row], weight_y[row], row_buffer)
            _mix_columns(row_buffer, first_x, weight_x, out[c, row])
