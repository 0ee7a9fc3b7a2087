"""Episode and frame number burnt into every picture: a wrong frame cannot pass for the right one.

24 bits in cells of 8 x 4 pixels from the top left corner on, lowest bit first, at most 12 cells a row. They survive
lossy coding and, read at the cells' middles, resizing down to about half the size.
"""

# Shapes: H height, W width, C channels

from __future__ import annotations

import numpy as np

CELL_H, CELL_W, BITS = 4, 8, 24
MAX_FRAMES = 4096


def _cells(width: int) -> list[tuple[int, int]]:
    """Return (row, column) of each bit's cell in a picture `width` wide."""
    per_row = min(12, width // CELL_W)
    return [divmod(bit, per_row) for bit in range(BITS)]


def draw(picture_HWC: np.ndarray, episode: int, frame: int) -> None:
    """Burn (episode, frame) into `picture_HWC`, in place."""
    value = episode * MAX_FRAMES + frame
    for bit, (row, col) in enumerate(_cells(picture_HWC.shape[1])):
        shade = 255 if value >> bit & 1 else 0
        picture_HWC[CELL_H * row : CELL_H * (row + 1), CELL_W * col : CELL_W * (col + 1)] = shade


def read(picture_CHW: np.ndarray, stored: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return (episode, frame) burnt into a uint8 picture.

    Args:
        picture_CHW: As delivered.
        stored: (H, W) it was burnt in at, where it has been resized since.
    """
    height, width = stored or picture_CHW.shape[1:]
    scale_y, scale_x = picture_CHW.shape[1] / height, picture_CHW.shape[2] / width
    value = 0
    for bit, (row, col) in enumerate(_cells(width)):
        # Half of the cell around its middle, at least the one pixel there.
        y0, y1 = scale_y * CELL_H * (row + 0.25), scale_y * CELL_H * (row + 0.75)
        x0, x1 = scale_x * CELL_W * (col + 0.25), scale_x * CELL_W * (col + 0.75)
        ys = slice(int(y0), max(int(y1), int(y0) + 1))
        xs = slice(int(x0), max(int(x1), int(x0) + 1))
        value |= int(picture_CHW[:, ys, xs].mean() > 127) << bit
    return divmod(value, MAX_FRAMES)
