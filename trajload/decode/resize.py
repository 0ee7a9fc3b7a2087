"""Resizing pictures: exact area averages down, bilinear up, in integers, so that every machine gives the same bytes."""

# Shapes: O output samples of an axis, K taps of a filter, C channels, H height, W width

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trajload.types import Int64Array, NDArray

if TYPE_CHECKING:
    from trajload.decode.context import DecodeContext

__all__ = ["WEIGHT_BITS", "axis_weights", "nearest_indices", "resize_planes"]

WEIGHT_BITS = 14


def axis_weights(num_in: int, num_out: int) -> tuple[NDArray, NDArray]:
    """Return the filter of one axis: first input sample and weights of every output sample.

    Down, an output sample is the mean of the input it covers, edges counted by the part covered. Up, it is the linear
    mix of the two nearest input samples (pixel centres at half integers, edges repeated).

    Returns:
        first_O: int32 (O,), such that taps first..first + K lie inside the input.
        weight_OK: int32 (O, K), each row non-negative and summing to exactly 2**14.

    Example:
        >>> axis_weights(4, 2)[1].tolist()
        [[8192, 8192], [8192, 8192]]
    """
    rows: list[tuple[int, list[float]]] = []
    for o in range(num_out):
        if num_out < num_in:
            # in units of 1 / num_out of an input sample, so that no rounding error decides which samples are covered
            low, high = o * num_in, (o + 1) * num_in
            first, stop = low // num_out, -(-high // num_out)
            cover = [min(high, (i + 1) * num_out) - max(low, i * num_out) for i in range(first, stop)]
            rows.append((first, [c / num_in for c in cover]))
        else:
            # centre (o + 1/2) * num_in / num_out - 1/2, as a fraction over 2 * num_out
            at = (2 * o + 1) * num_in - num_out
            first, rest = divmod(at, 2 * num_out)
            share = rest / (2 * num_out)
            if first < 0:
                rows.append((0, [1.0]))
            elif first >= num_in - 1:
                rows.append((num_in - 1, [1.0]))
            else:
                rows.append((first, [1 - share, share]))
    taps = max(len(weights) for _, weights in rows)
    first_O = np.zeros(num_out, dtype=np.int32)
    # in memory tap by tap: the kernel takes one tap of all outputs at a time
    weight_OK = np.zeros((taps, num_out), dtype=np.int32).T
    for o, (first, weights) in enumerate(rows):
        start = min(first, num_in - taps)
        fixed = [round(w * (1 << WEIGHT_BITS)) for w in weights]
        fixed[max(range(len(fixed)), key=fixed.__getitem__)] += (1 << WEIGHT_BITS) - sum(fixed)
        first_O[o] = start
        weight_OK[o, first - start : first - start + len(fixed)] = fixed
    return first_O, weight_OK


def nearest_indices(num_in: int, num_out: int) -> Int64Array:
    """Return, for each output sample, the input sample its centre falls into."""
    return (2 * np.arange(num_out, dtype=np.int64) + 1) * num_in // (2 * num_out)


def resize_planes(picture: NDArray, out: NDArray, context: DecodeContext) -> None:
    """Write `picture` (C, h, w) uint8 resized to `out` (C, H, W) uint8; both C-contiguous."""
    from trajload.decode import kernels

    first_y, weight_y = context.weights(picture.shape[1], out.shape[1])
    first_x, weight_x = context.weights(picture.shape[2], out.shape[2])
    rows = (
        context.scratch("resize_row", (picture.shape[2],), np.int32),
        context.scratch("resize_sum", (out.shape[2],), np.int32),
    )
    kernels.resize(picture, first_y, weight_y.T, first_x, weight_x.T, *rows, out)
