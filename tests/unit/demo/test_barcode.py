"""The barcode says which frame a picture is, and says so when it cannot."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from trajload.demo import read_barcode
from trajload.demo.barcode import MAX_VALUE, burn_barcode
from trajload.errors import ConfigError, DecodeError


def picture(episode: int, step: int, *, size: int = 64) -> np.ndarray:
    rgb_THWC = np.full((1, size, size, 3), 127, np.uint8)
    burn_barcode(rgb_THWC, episode, np.array([step]))
    return rgb_THWC[0]


@pytest.mark.parametrize("size", [48, 64, 96, 240 // 16 * 16])
@pytest.mark.parametrize(("episode", "step"), [(0, 0), (23, 239), (1234, 4000), (MAX_VALUE, MAX_VALUE)])
def test_barcode_reads_back(episode: int, step: int, size: int) -> None:
    """Both numbers come back at every picture size."""
    assert read_barcode(picture(episode, step, size=size).transpose(2, 0, 1)) == (episode, step)


@pytest.mark.parametrize("size", [48, 64, 100, 128])
def test_barcode_reads_back_after_resizing(size: int) -> None:
    """A resized picture still says which frame it is."""
    resized = np.asarray(Image.fromarray(picture(17, 211, size=96)).resize((size, size), Image.Resampling.BILINEAR))
    assert read_barcode(resized.transpose(2, 0, 1)) == (17, 211)


def test_barcode_survives_noise_but_not_a_flipped_cell() -> None:
    """Coding noise is harmless; a wrong cell fails the checksum instead of naming another frame."""
    frame_HWC = picture(3, 77).astype(np.float32)
    wave_HW = 60.0 * np.sin(np.arange(64))[:, None] * np.cos(np.arange(64))[None, :]
    noisy = np.clip(frame_HWC + wave_HW[..., None], 0, 255).transpose(2, 0, 1)
    assert read_barcode(noisy) == (3, 77)
    flipped = picture(3, 77)
    flipped[4:8, 20:24] = 255 - flipped[4:8, 20:24]
    with pytest.raises(DecodeError, match="barcode is not legible: got checksum"):
        read_barcode(flipped.transpose(2, 0, 1))


def test_barcode_that_does_not_fit_is_refused() -> None:
    """Numbers of more than 12 bits and widths that are no multiple of 16 are refused by value."""
    with pytest.raises(ConfigError, match="episode=4096"):
        picture(4096, 0)
    with pytest.raises(ConfigError, match="width 50"):
        picture(0, 0, size=50)
