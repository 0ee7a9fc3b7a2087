"""JPEG pixels through simplejpeg where it is installed and gives Pillow's bytes; Pillow decodes everything else.

Both wrap libjpeg-turbo, but builds differ, so nothing is taken on trust: sample pictures are decoded by both before the
first use, and a library that differs in one byte is not used.
"""

# Shapes: C channels, H height, W width

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from PIL import Image as PillowImage

from trajload.types import NDArray

__all__ = ["FastJpeg", "find_simplejpeg", "jpeg_scale", "scaled_size"]

FastJpeg: TypeAlias = Callable[[bytes, int, int], "NDArray | None"]
"""(data, height, width) -> RGB (height, width, 3) decoded at that size, or None for Pillow to look at the picture.

The size is the picture's own, or a half, quarter or eighth of it, rounded up."""

_SCALES = (8, 4, 2)


def find_simplejpeg() -> tuple[FastJpeg | None, str]:
    """Return a decoder, or None and why not."""
    try:
        import simplejpeg
    except ImportError as err:
        return None, f"simplejpeg cannot be imported: {err}"

    def decode(data: bytes, height: int, width: int) -> NDArray | None:
        try:
            # strict: what libjpeg only warns of is Pillow's to judge
            array = simplejpeg.decode_jpeg(data, "RGB", min_height=height, min_width=width, strict=True)
        except ValueError:
            return None
        return array if array.shape == (height, width, 3) else None

    try:
        different = _first_difference(decode)
    except Exception as err:  # another version may have another interface, and Pillow does the work then
        return None, f"simplejpeg failed at a sample picture: {type(err).__name__}: {err}"
    if different is not None:
        return None, f"simplejpeg {getattr(simplejpeg, '__version__', '?')} differs from Pillow at {different}"
    return decode, ""


def _first_difference(decode: FastJpeg) -> str | None:
    """Return the name of a sample picture that `decode` and Pillow see differently; None if there is none."""
    y, x = np.mgrid[0:45, 0:61]
    # gradients, edges and a texture that excites every frequency of a block
    picture = np.stack([x * 4 + (x * y) % 7, y * 5 + (x * 13) % 17, (x + y) * 2 + 90 * (x > 30)], axis=-1) % 256
    image = PillowImage.fromarray(picture.astype(np.uint8))
    for name, mode, kwargs in (
        ("4:2:0", "RGB", {"subsampling": 2}),
        ("4:2:2", "RGB", {"subsampling": 1}),
        ("4:4:4", "RGB", {"subsampling": 0}),
        ("progressive", "RGB", {"progressive": True}),
        ("gray", "L", {}),
    ):
        buffer = io.BytesIO()
        image.convert(mode).save(buffer, "JPEG", quality=85, **kwargs)
        data = buffer.getvalue()
        for scale in (1, *_SCALES):
            with PillowImage.open(io.BytesIO(data)) as opened:
                wanted = np.asarray(jpeg_scale(opened, scale).convert("RGB"))
            got = decode(data, *wanted.shape[:2])
            if got is None or not np.array_equal(got, wanted):
                return f"{name} at 1/{scale}"
    return None


def scaled_size(stored: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Return the greatest scale of 8, 4, 2, 1 whose picture is not smaller than `wanted` (H, W), and its size.

    Example:
        >>> scaled_size((480, 640), (112, 112))
        (4, (120, 160))
    """
    for scale in (*_SCALES, 1):
        size = (-(-stored[0] // scale), -(-stored[1] // scale))
        if size[0] >= wanted[0] and size[1] >= wanted[1]:
            return scale, size
    return 1, stored


def jpeg_scale(image: Any, scale: int) -> Any:
    """Return Pillow's JPEG, to be decoded at 1/scale; nothing is decoded yet."""
    if scale > 1:
        # Pillow takes the greatest scale that does not go below the size asked for, which it rounds down
        image.draft(None, (max(1, image.size[0] // scale), max(1, image.size[1] // scale)))
    return image
