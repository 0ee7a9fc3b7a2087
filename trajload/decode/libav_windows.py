"""Several windows of video in one compiled call: between two windows a decoder thread does not ask for Python's lock.

Compiled code is kept by the time stamp of this file: touch it after an edit of `libav_loop.py` or of what that inlines.
"""

# Shapes: N windows, P packets, S segments, W wanted frames, T rows, C channels, H height, W width

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.decode.libav_loop import OK, decode_window, pointer_to
from trajload.jit import compiled
from trajload.types import NDArray

__all__ = ["decode_windows"]

if TYPE_CHECKING:

    def carray(pointer: Any, size: Any, dtype: Any) -> NDArray: ...

else:
    from numba import carray


@compiled
def decode_windows(
    state: NDArray,
    expected: NDArray,
    bases_N: NDArray,
    ranges_N2: NDArray,
    packets_P4: NDArray,
    segments_S3: NDArray,
    wanted_W3: NDArray,
    stops_N3: NDArray,
    shape_4: NDArray,
    out_N: NDArray,
    coefficients: NDArray,
    rgb: NDArray,
    first_y: NDArray,
    weight_y: NDArray,
    first_x: NDArray,
    weight_x: NDArray,
    row_buffer: NDArray,
) -> tuple[int, int]:
    """Decode windows one after the other; return the status of the last one and how many went well.

    Args:
        state: And those not named here: as for `libav_loop.decode_window`, of all windows one behind the other.
        bases_N: Where in memory the one range of each window stands.
        stops_N3: Where the packets, segments and wanted frames of each window end.
        shape_4: (T, C, H, W) of each window, of uint8.
        out_N: Where in memory each is written.
    """
    p, s, w = 0, 0, 0
    for n in range(len(out_N)):
        out = carray(pointer_to(out_N[n]), (shape_4[0], shape_4[1], shape_4[2], shape_4[3]), np.uint8)
        status = decode_window(
            state,
            expected,
            bases_N[n : n + 1],
            ranges_N2[n : n + 1],
            packets_P4[p : stops_N3[n, 0]],
            segments_S3[s : stops_N3[n, 1]],
            wanted_W3[w : stops_N3[n, 2]],
            coefficients,
            rgb,
            first_y,
            weight_y,
            first_x,
            weight_x,
            row_buffer,
            out,
        )
        if status != OK:
            return status, n
        p, s, w = stops_N3[n, 0], stops_N3[n, 1], stops_N3[n, 2]
    return OK, len(out_N)
