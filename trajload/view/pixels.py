"""Pictures of any stream as 8-bit RGB for people: depth in false colours, everything at one tile size."""

# Shapes: T steps, H height, W width, C channels

from __future__ import annotations

import numpy as np
from PIL import Image

from trajload.types import NDArray

__all__ = ["as_frames", "false_colour", "resize", "tile_size", "to_rgb"]

_MIN_SIDE_PX = 8

# Blue (near) over green to red (far): the anchors of the depth scale, at equal distances.
_SCALE = np.array([[48, 18, 120], [40, 120, 230], [30, 200, 170], [150, 220, 60], [240, 180, 40], [190, 30, 20]], float)


def as_frames(values: NDArray) -> NDArray | None:
    """Return the rows of one window as frames (T, C, H, W), or None where they are no pictures.

    Pictures come as (T, C, H, W); arrays stored without an image codec come as stored, (T, H, W) or (T, H, W, C).
    """
    if values.dtype.kind not in "uif" or values.ndim not in (3, 4):
        return None
    if values.ndim == 3:
        return values[:, None] if min(values.shape[1:]) >= _MIN_SIDE_PX else None
    if values.shape[1] in (1, 3, 4) and min(values.shape[2:]) >= _MIN_SIDE_PX:
        return values
    if values.shape[3] in (1, 3, 4) and min(values.shape[1:3]) >= _MIN_SIDE_PX:
        return values.transpose(0, 3, 1, 2)
    return None


def false_colour(depth_THW: NDArray) -> tuple[NDArray, str]:
    """Return depth as RGB (T, H, W, 3) uint8, and its range as text ('412..1830').

    The scale spans the 2nd to 98th percentile of what was measured; zero, negative and non-finite values mean "no
    measurement" and are black.
    """
    depth_THW = np.asarray(depth_THW, dtype=np.float64)
    is_measured_THW = np.isfinite(depth_THW) & (depth_THW > 0)
    rgb_THWC = np.zeros((*depth_THW.shape, 3), dtype=np.uint8)
    if not is_measured_THW.any():
        return rgb_THWC, "nothing measured"
    low, high = np.percentile(depth_THW[is_measured_THW], [2, 98])
    place_THW = np.clip((np.where(is_measured_THW, depth_THW, low) - low) / max(high - low, 1e-12), 0, 1)
    anchors = np.linspace(0, 1, len(_SCALE))
    for c in range(3):
        rgb_THWC[..., c] = np.interp(place_THW, anchors, _SCALE[:, c])
    rgb_THWC[~is_measured_THW] = 0
    return rgb_THWC, f"{low:.4g}..{high:.4g}"


def to_rgb(frames_TCHW: NDArray) -> tuple[NDArray, str]:
    """Return frames as RGB (T, H, W, 3) uint8, and a remark on the scale (empty for plain colour)."""
    num_channels = frames_TCHW.shape[1]
    if frames_TCHW.dtype == np.uint8 and num_channels in (3, 4):
        return np.ascontiguousarray(frames_TCHW[:, :3].transpose(0, 2, 3, 1)), ""
    if frames_TCHW.dtype == np.uint8 and num_channels == 1:
        return np.repeat(frames_TCHW.transpose(0, 2, 3, 1), 3, axis=3), ""
    return false_colour(frames_TCHW[:, 0])


def tile_size(height: int, width: int, wanted: int) -> tuple[int, int]:
    """Return (height, width) of a tile whose longer side is `wanted` pixels, in the picture's proportions."""
    scale = wanted / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def resize(rgb_HWC: NDArray, height: int, width: int) -> Image.Image:
    """Return one frame as a Pillow image of the tile's size."""
    image = Image.fromarray(rgb_HWC)
    if image.size == (width, height):
        return image
    shrinks = height < image.size[1]
    return image.resize((width, height), Image.Resampling.BOX if shrinks else Image.Resampling.NEAREST)
