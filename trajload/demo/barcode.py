"""A barcode of (episode, step) burnt into a picture, so that a test can prove which frame it was given.

32 bits in 2 rows of 16 square cells across the top of the picture, black 0 and white 1: 12 bits of episode, 12 of
step, 8 of a checksum over both. A cell is a sixteenth of the width and only its middle is read, so the code
survives lossy video and resizing by moderate factors; a misread does not survive the checksum.
"""

# Shapes: T frames, H height, W width, C channels, R rows of cells, K cells in a row

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from trajload.errors import ConfigError, DecodeError

__all__ = ["MAX_VALUE", "barcode_height", "burn_barcode", "read_barcode"]

CELLS_PER_ROW = 16
NUM_ROWS = 2
MAX_VALUE = (1 << 12) - 1
"""Largest episode and step index that fit."""


def barcode_height(width: int) -> int:
    """Return the pixels at the top of a picture of `width` that the barcode covers."""
    return NUM_ROWS * (width // CELLS_PER_ROW)


def _checksum(episode: int, step: int) -> int:
    return zlib.crc32(episode.to_bytes(2, "little") + step.to_bytes(2, "little")) & 0xFF


def _word(episode: int, step: int) -> int:
    if not (0 <= episode <= MAX_VALUE and 0 <= step <= MAX_VALUE):
        raise ConfigError(
            f"barcode holds 12 bits a number: got episode={episode!r} step={step!r}, expected 0 to {MAX_VALUE}."
        )
    return episode << 20 | step << 8 | _checksum(episode, step)


def burn_barcode(rgb_THWC: npt.NDArray[np.uint8], episode: int, steps_T: npt.NDArray[np.int64]) -> None:
    """Write the code of (episode, step) over the top of each frame, in place. The width is a multiple of 16."""
    width = rgb_THWC.shape[2]
    if width % CELLS_PER_ROW:
        raise ConfigError(f"picture width {width} does not fit the barcode: expected a multiple of {CELLS_PER_ROW}.")
    cell = width // CELLS_PER_ROW
    words_T = np.array([_word(episode, int(step)) for step in steps_T], dtype=np.uint32)
    bits = (words_T[:, None] >> np.arange(31, -1, -1, dtype=np.uint32)) & np.uint32(1)
    bits_TRK = (bits.reshape(-1, NUM_ROWS, CELLS_PER_ROW) * 255).astype(np.uint8)
    pixels_THW = bits_TRK.repeat(cell, axis=1).repeat(cell, axis=2)
    rgb_THWC[:, : NUM_ROWS * cell] = pixels_THW[..., None]


def read_barcode(frame_CHW: npt.ArrayLike) -> tuple[int, int]:
    """Return (episode, step) from one picture as a batch holds it: (C, H, W), 0 to 255, array or CPU tensor.

    Raises:
        DecodeError: The checksum does not fit, so the picture carries no legible code.
    """
    grey_HW = np.asarray(frame_CHW, dtype=np.float32).mean(axis=0)
    cell = grey_HW.shape[1] / CELLS_PER_ROW
    # The middle half of a cell: its edges ring in lossy video and blend when resized.
    grey_RK = np.empty((NUM_ROWS, CELLS_PER_ROW), dtype=np.float32)
    for row in range(NUM_ROWS):
        for column in range(CELLS_PER_ROW):
            top, left = int((row + 0.25) * cell), int((column + 0.25) * cell)
            size = max(1, int(0.5 * cell))
            grey_RK[row, column] = grey_HW[top : top + size, left : left + size].mean()
    word = 0
    for bit in (grey_RK > 127.5).ravel():
        word = word << 1 | int(bit)
    episode, step, checksum = word >> 20, word >> 8 & 0xFFF, word & 0xFF
    if checksum != _checksum(episode, step):
        raise DecodeError(
            f"barcode is not legible: got checksum {checksum} for episode {episode} step {step}, "
            f"expected {_checksum(episode, step)}. Only pictures of the demo dataset carry one."
        )
    return episode, step
