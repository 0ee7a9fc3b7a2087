"""Resizing: weights are exact averages, results are those of plain float arithmetic, and the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from trajload.decode import DecodeContext
from trajload.decode.resize import axis_weights, nearest_indices, resize_planes

SIZES = [(10, 10), (10, 5), (10, 3), (7, 5), (640, 128), (480, 84), (5, 10), (3, 7), (1, 4), (4, 1), (2, 3), (1, 1)]


def dense(num_in: int, num_out: int) -> np.ndarray:
    """Return the (O, I) matrix of the filter, computed directly from its definition in floating point."""
    matrix = np.zeros((num_out, num_in))
    scale = num_in / num_out
    for o in range(num_out):
        if num_out < num_in:
            for i in range(num_in):
                matrix[o, i] = max(0.0, min((o + 1) * scale, i + 1) - max(o * scale, i)) / scale
        else:
            at = min(max((o + 0.5) * scale - 0.5, 0.0), num_in - 1.0)
            low = min(int(at), num_in - 1)
            matrix[o, low] += 1 - (at - low)
            matrix[o, min(low + 1, num_in - 1)] += at - low
    return matrix


@pytest.mark.parametrize(("num_in", "num_out"), SIZES)
def test_weights_are_the_definition_in_fixed_point(num_in: int, num_out: int) -> None:
    """Every row sums to exactly one, none is negative, and taps lie inside the input."""
    first, weight = axis_weights(num_in, num_out)
    assert (weight.sum(axis=1) == 1 << 14).all() and (weight >= 0).all()
    assert (first >= 0).all() and (first + weight.shape[1] <= num_in).all()
    got = np.zeros((num_out, num_in))
    for o in range(num_out):
        got[o, first[o] : first[o] + weight.shape[1]] = weight[o] / (1 << 14)
    np.testing.assert_allclose(got, dense(num_in, num_out), atol=weight.shape[1] / (1 << 14))


@pytest.mark.parametrize("out_size", [(12, 16), (30, 31), (5, 64), (48, 7), (1, 1), (96, 128), (48, 64)], ids=str)
def test_resized_picture_is_the_filter_applied_to_rows_and_columns(out_size: tuple[int, int]) -> None:
    """Within one level of float arithmetic, whatever way each axis goes."""
    picture = np.random.default_rng(1).integers(0, 256, (3, 48, 64), dtype=np.uint8)
    out = np.empty((3, *out_size), np.uint8)
    resize_planes(picture, out, DecodeContext())
    wanted = dense(48, out_size[0]) @ picture.astype(float) @ dense(64, out_size[1]).T
    assert np.abs(out - wanted).max() <= 0.75


def test_flat_pictures_stay_flat() -> None:
    """A picture of one value keeps it exactly: brightness does not drift, and white does not overflow."""
    for value in (0, 1, 127, 254, 255):
        picture = np.full((3, 31, 37), value, np.uint8)
        for size in ((9, 11), (62, 40), (31, 5)):
            out = np.empty((3, *size), np.uint8)
            resize_planes(picture, out, DecodeContext())
            assert (out == value).all(), (value, size)


def test_nearest_takes_the_sample_under_each_centre() -> None:
    """By hand: 4 to 2 takes samples 1 and 3, 2 to 4 repeats each, equal sizes change nothing."""
    assert nearest_indices(4, 2).tolist() == [1, 3]
    assert nearest_indices(2, 4).tolist() == [0, 0, 1, 1]
    assert nearest_indices(5, 5).tolist() == [0, 1, 2, 3, 4]
