"""Resizing pictures: exact area averages down, bilinear up, in integers, so that every machine gives the same bytes."""

# Shapes: O output samples of an axis, K taps of a filter, C channels, H height, W width

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trajload.types import Int64Array, NDArray

if TYPE_CHECKING:
    from trajload.decode.context import DecodeContext

__all__ = ["WEIGHT_BITS", "PictureFilter", "axis_weights", "nearest_indices", "resize_planes"]

WEIGHT_BITS = 14
_TAPS_AT_ONCE_Y, _TAPS_AT_ONCE_X = 2, 4


@dataclass(frozen=True, slots=True, eq=False)
class PictureFilter:
    """The filters of both axes as `kernels.resize` takes them, and its row buffer: for one thread at a time."""

    first_y: NDArray
    """int32 (H,): the first row of each output row."""
    weight_y: NDArray
    """int16 (H, K), K even; taps beyond the picture weigh nothing."""
    first_x: NDArray
    """int32 (W,)"""
    weight_x: NDArray
    """int16 (G, W, 4): weights of the first four taps of each output column, of the next four, and so on."""
    row_buffer: NDArray
    """int16, as long as a row and the taps beyond it."""

    @classmethod
    def between(cls, size_in: tuple[int, ...], size_out: tuple[int, ...]) -> PictureFilter:
        """Return the filter from pictures of `size_in` (h, w) to `size_out` (H, W)."""
        first_y, weight_y = _in_groups(size_in[0], size_out[0], _TAPS_AT_ONCE_Y)
        first_x, weight_x = _in_groups(size_in[1], size_out[1], _TAPS_AT_ONCE_X)
        taps = weight_x.shape[1]
        grouped = weight_x.reshape(size_out[1], taps // _TAPS_AT_ONCE_X, _TAPS_AT_ONCE_X).transpose(1, 0, 2)
        row_buffer = np.zeros(size_in[1] + taps, dtype=np.int16)
        return cls(first_y, weight_y, first_x, np.ascontiguousarray(grouped), row_buffer)

    @property
    def arrays(self) -> tuple[NDArray, NDArray, NDArray, NDArray, NDArray]:
        """The middle arguments of `kernels.resize`."""
        return self.first_y, self.weight_y, self.first_x, self.weight_x, self.row_buffer


def _in_groups(num_in: int, num_out: int, group: int) -> tuple[NDArray, NDArray]:
    """Return `axis_weights` as int16, the number of taps a multiple of `group`; windows lie inside the input if they can."""
    first_O, weight_OK = axis_weights(num_in, num_out)
    taps = weight_OK.shape[1]
    wider = -(-taps // group) * group
    start_O = np.minimum(first_O, max(num_in - wider, 0)).astype(np.int32)
    grouped_OK = np.zeros((num_out, wider), dtype=np.int16)
    columns_OK = (first_O - start_O)[:, None] + np.arange(taps)
    # what a window moved at the edge would push out weighs nothing there
    is_inside_OK = columns_OK < wider
    grouped_OK[np.nonzero(is_inside_OK)[0], columns_OK[is_inside_OK]] = weight_OK[is_inside_OK]
    return start_O, grouped_OK


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

    kernels.resize(picture, *context.filter(picture.shape[1:], out.shape[1:]).arrays, out)
