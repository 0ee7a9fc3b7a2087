"""The pixel kernels equal their definition in plain NumPy, number by number, at every kind of size."""

from __future__ import annotations

import numpy as np
import pytest

from trajload.decode import DecodeContext, kernels
from trajload.decode.pixels import swscale_coefficients
from trajload.decode.resize import axis_weights, resize_planes

# below, at and above what one vector step takes, odd ones, and steps that reach back into their neighbours
WIDTHS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 34, 47, 62, 63, 64, 65, 95, 96, 97, 320]
# guard bytes around what may be written
GUARD = 64


def upper_half(values: np.ndarray, gain: int) -> np.ndarray:
    return (values.astype(np.int64) * gain) >> 16


def converted(y: np.ndarray, u: np.ndarray, v: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return swscale's arithmetic for planes of exactly the picture's size: (3, H, W)."""
    gain, offset, red_v, green_u, green_v, blue_u = coefficients.tolist()
    luma = upper_half((y.astype(np.int64) << 3) - offset, gain)
    u, v = (np.repeat(np.repeat((c.astype(np.int64) - 128) << 3, 2, 0), 2, 1)[:, : y.shape[1]] for c in (u, v))
    green = upper_half(u, green_u) + upper_half(v, green_v)
    colours = [luma + upper_half(v, red_v), luma + green, luma + upper_half(u, blue_u)]
    return np.clip(np.stack(colours), 0, 255).astype(np.uint8)


def resized(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the filter applied as documented: 14-bit weights, rows first, 6 bits kept between the passes."""
    dense = []
    for num_in, num_out in zip(picture.shape[1:], size, strict=True):
        first, weight = axis_weights(num_in, num_out)
        matrix = np.zeros((num_out, num_in), np.int64)
        for o in range(num_out):
            matrix[o, first[o] : first[o] + weight.shape[1]] = weight[o]
        dense.append(matrix)
    rows = (dense[0] @ picture.astype(np.int64) + 128) >> 8
    return ((rows @ dense[1].T + (1 << 19)) >> 20).astype(np.uint8)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("color_range", ["limited", "full"])
def test_420_is_its_definition_and_writes_nothing_else(width: int, color_range: str) -> None:
    """All byte values, planes with a stride that end with the picture's last sample, guarded output."""
    rng = np.random.default_rng(width)
    height, half, y_stride, c_stride = 6, (width + 1) // 2, width + 5, (width + 1) // 2 + 3
    y, u, v = (
        rng.integers(0, 256, stride * (rows - 1) + row_bytes, dtype=np.uint8)
        for stride, rows, row_bytes in ((y_stride, height, width), (c_stride, 3, half), (c_stride, 3, half))
    )
    strided = np.lib.stride_tricks.as_strided
    planes = [
        strided(p, (r, w), (s, 1))
        for p, r, w, s in ((y, height, width, y_stride), (u, 3, half, c_stride), (v, 3, half, c_stride))
    ]
    for color_space in ("bt709", "bt470bg", "bt2020nc"):
        coefficients = swscale_coefficients("yuv420p", color_space, color_range)
        memory = np.full(3 * height * width + 2 * GUARD, 77, np.uint8)
        out = memory[GUARD:-GUARD].reshape(3, height, width)
        kernels.yuv420_to_rgb(y, u, v, y_stride, c_stride, coefficients, out)
        assert np.array_equal(out, converted(*planes, coefficients))
        assert (memory[:GUARD] == 77).all() and (memory[-GUARD:] == 77).all()


@pytest.mark.parametrize("width_in", [1, 3, 15, 16, 17, 33, 64])
@pytest.mark.parametrize("width_out", [1, 5, 7, 8, 9, 24, 31, 64])
def test_resize_is_its_definition_along_rows(width_in: int, width_out: int) -> None:
    """Down and up, from one column to many and back, to the last bit."""
    picture = np.random.default_rng(3).integers(0, 256, (3, 5, width_in), dtype=np.uint8)
    for height in (2, 5, 8):
        memory = np.full(3 * height * width_out + 2 * GUARD, 77, np.uint8)
        out = memory[GUARD:-GUARD].reshape(3, height, width_out)
        resize_planes(picture, out, DecodeContext())
        assert np.array_equal(out, resized(picture, (height, width_out)))
        assert (memory[:GUARD] == 77).all() and (memory[-GUARD:] == 77).all()


@pytest.mark.parametrize("height_in", [1, 2, 3, 4, 7, 16, 31, 64, 130])
@pytest.mark.parametrize("height_out", [1, 2, 3, 8, 13, 64])
def test_resize_is_its_definition_along_columns(height_in: int, height_out: int) -> None:
    """From two taps to a hundred, windows at the lower edge included, to the last bit; white does not overflow."""
    for picture in (
        np.random.default_rng(4).integers(0, 256, (3, height_in, 40), dtype=np.uint8),
        np.full((3, height_in, 40), 255, np.uint8),
    ):
        out = np.empty((3, height_out, 20), np.uint8)
        resize_planes(picture, out, DecodeContext())
        assert np.array_equal(out, resized(picture, (height_out, 20)))


def test_resize_of_camera_pictures_is_its_definition() -> None:
    """The sizes that training uses."""
    rng = np.random.default_rng(5)
    for size, wanted in (
        ((240, 320), (128, 128)),
        ((480, 640), (224, 224)),
        ((96, 96), (224, 224)),
        ((240, 320), (64, 64)),
    ):
        picture = rng.integers(0, 256, (3, *size), dtype=np.uint8)
        out = np.empty((3, *wanted), np.uint8)
        resize_planes(picture, out, DecodeContext())
        assert np.array_equal(out, resized(picture, wanted))
