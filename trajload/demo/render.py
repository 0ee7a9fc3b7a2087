"""Pictures of the demo's world in plain numpy: a view from above, a view from the side, and depth from above.

Everything is drawn by distance: the coverage of a pixel by a disc is its signed distance over the pixel's footprint,
clipped to [0, 1], which antialiases without supersampling. All frames of an episode are drawn at once.
"""

# Shapes: T frames, H height, W width, C channels (3)

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trajload.demo.barcode import barcode_height
from trajload.demo.physics import ARENA_M, GOAL_RADIUS_M, PUCK_RADIUS_M, PUSHER_RADIUS_M, WALL_M

__all__ = ["COLOURS", "Look", "depth_mm", "view_from_above", "view_from_side"]

Float32 = npt.NDArray[np.float32]
Colour = tuple[float, float, float]

COLOURS: dict[str, Colour] = {
    "red": (206.0, 62.0, 48.0),
    "green": (58.0, 148.0, 82.0),
    "blue": (52.0, 98.0, 190.0),
    "yellow": (226.0, 180.0, 44.0),
}
_TABLE: Colour = (226.0, 219.0, 204.0)
_WALL: Colour = (104.0, 94.0, 86.0)
_ROOM: Colour = (150.0, 158.0, 168.0)
_PUSHER: Colour = (46.0, 46.0, 54.0)

PUCK_HEIGHT_M = 0.03
PUSHER_HEIGHT_M = 0.08
WALL_HEIGHT_M = 0.04
CAMERA_HEIGHT_M = 1.0
"""Of the depth camera above the table."""


@dataclass(frozen=True, slots=True)
class Look:
    """What stays the same over an episode's pictures."""

    goal: tuple[float, float]
    goal_colour: str
    puck_colour: str


def view_from_above(pusher_T2: Float32, puck_T2: Float32, look: Look, *, size: int) -> npt.NDArray[np.uint8]:
    """Return (T, H, W, 3) uint8 pictures, H = W = `size`; the barcode's strip at the top is left black."""
    x_HW, y_HW, pixel_m = _ground_from_above(size)
    picture = _table(x_HW, y_HW, pixel_m, look)
    frames = np.repeat(picture[None], len(puck_T2), axis=0)
    for centre_T2, radius, colour in (
        (puck_T2, PUCK_RADIUS_M, COLOURS[look.puck_colour]),
        (pusher_T2, PUSHER_RADIUS_M, _PUSHER),
    ):
        distance = _distance(x_HW, y_HW, centre_T2)
        _paint(frames, _coverage(distance - radius, pixel_m), _shade(colour, 0.72))
        _paint(frames, _coverage(distance - 0.75 * radius, pixel_m), colour)
    frames[:, : barcode_height(size)] = 0.0
    return _to_uint8(frames)


def view_from_side(pusher_T2: Float32, puck_T2: Float32, look: Look, *, size: int) -> npt.NDArray[np.uint8]:
    """Return (T, H, W, 3) uint8 pictures in perspective, from the front edge of the table, 52 degrees down."""
    x_HW, y_HW, pixel_HW = _plane_from_side(size, height_m=0.0)
    frames = np.repeat(_table(x_HW, y_HW, pixel_HW, look)[None], len(puck_T2), axis=0)
    pusher_is_nearer_T = pusher_T2[:, 1] < puck_T2[:, 1]
    puck_colour = COLOURS[look.puck_colour]
    # The farther body first: where the pusher is nearer it is painted after the puck, elsewhere before it.
    for mask_T, centre_T2, radius, height, colour in (
        (~pusher_is_nearer_T, pusher_T2, PUSHER_RADIUS_M, PUSHER_HEIGHT_M, _PUSHER),
        (np.ones_like(pusher_is_nearer_T), puck_T2, PUCK_RADIUS_M, PUCK_HEIGHT_M, puck_colour),
        (pusher_is_nearer_T, pusher_T2, PUSHER_RADIUS_M, PUSHER_HEIGHT_M, _PUSHER),
    ):
        if not mask_T.any():
            continue
        # A cylinder is a stack of discs, darker at the bottom.
        for level in np.arange(0.0, height + 1e-6, 0.01):
            x_HW, y_HW, pixel_HW = _plane_from_side(size, height_m=float(level))
            cover = _coverage(_distance(x_HW, y_HW, centre_T2[mask_T]) - radius, pixel_HW)
            is_top = level + 0.005 > height
            part = frames[mask_T]
            _paint(part, cover, colour if is_top else _shade(colour, 0.5 + 0.3 * level / height))
            frames[mask_T] = part
    frames[:, : barcode_height(size)] = 0.0
    return _to_uint8(frames)


def depth_mm(pusher_T2: Float32, puck_T2: Float32, *, size: int) -> npt.NDArray[np.uint16]:
    """Return (T, H, W, 1) uint16 distances from the camera's plane in millimetres; 0 means not measured."""
    x_HW, y_HW, _ = _ground_from_above(size)
    top_THW = np.zeros((len(puck_T2), size, size), dtype=np.float32)
    top_THW[:, _wall_distance(x_HW, y_HW) < 0.0] = WALL_HEIGHT_M
    for centre_T2, radius, height in (
        (puck_T2, PUCK_RADIUS_M, PUCK_HEIGHT_M),
        (pusher_T2, PUSHER_RADIUS_M, PUSHER_HEIGHT_M),
    ):
        inside = _distance(x_HW, y_HW, centre_T2) < radius
        top_THW[inside] = height
    depth_THW = np.rint(1000.0 * (CAMERA_HEIGHT_M - top_THW)).astype(np.uint16)
    depth_THW[:, : barcode_height(size)] = 0
    return depth_THW[..., None]


def _ground_from_above(size: int) -> tuple[Float32, Float32, float]:
    """Return the table's x and y at each pixel, and a pixel's size in metres. The table fills all but the strip."""
    pixel_m = ARENA_M[0] / size
    column = (np.arange(size, dtype=np.float32) + 0.5) * pixel_m
    row = ARENA_M[1] - (np.arange(size, dtype=np.float32) - barcode_height(size) + 0.5) * pixel_m
    x_HW, y_HW = np.meshgrid(column, row)
    return x_HW, y_HW, pixel_m


def _plane_from_side(size: int, *, height_m: float) -> tuple[Float32, Float32, Float32]:
    """Return where each pixel's ray meets the plane at `height_m`, and its footprint there in metres."""
    eye_x, eye_y, eye_z = 0.5 * ARENA_M[0], -0.32, 0.74
    sine, cosine = 0.7880, 0.6157  # 52 degrees down
    focal = 1.15 * size
    u = np.arange(size, dtype=np.float32) + 0.5 - 0.5 * size
    v = np.arange(size, dtype=np.float32) + 0.5 - 0.5 * (size + barcode_height(size))
    # A ray that does not fall (above the horizon) is sent far away, where only the room is.
    fall = np.maximum((sine * focal + cosine * v) / focal, 1e-3)[:, None]
    forward = ((cosine * focal - sine * v) / focal)[:, None]
    reach = (eye_z - height_m) / fall
    x_HW = (eye_x + reach * (u / focal)[None, :]).astype(np.float32)
    y_HW = np.broadcast_to(eye_y + reach * forward, x_HW.shape).astype(np.float32)
    footprint_HW = np.broadcast_to(reach / focal, x_HW.shape).astype(np.float32)
    return x_HW, y_HW, footprint_HW


def _table(x_HW: Float32, y_HW: Float32, pixel_m: float | Float32, look: Look) -> Float32:
    """Return the still picture: room, walls, table and goal ring, float32 (H, W, 3)."""
    picture = np.empty((1, *x_HW.shape, 3), dtype=np.float32)
    picture[:] = _ROOM
    outer = np.maximum(
        np.abs(x_HW - 0.5 * ARENA_M[0]) - 0.5 * ARENA_M[0], np.abs(y_HW - 0.5 * ARENA_M[1]) - 0.5 * ARENA_M[1]
    )
    _paint(picture, _coverage(outer, pixel_m)[None], _WALL)
    _paint(picture, _coverage(-_wall_distance(x_HW, y_HW), pixel_m)[None], _TABLE)
    goal = _distance(x_HW, y_HW, np.asarray([look.goal], dtype=np.float32))
    ring = np.abs(goal - 0.85 * GOAL_RADIUS_M) - 0.15 * GOAL_RADIUS_M
    _paint(picture, 0.35 * _coverage(goal - GOAL_RADIUS_M, pixel_m), COLOURS[look.goal_colour])
    _paint(picture, _coverage(ring, pixel_m), COLOURS[look.goal_colour])
    return picture[0]


def _wall_distance(x_HW: Float32, y_HW: Float32) -> Float32:
    """Return how far each point is inside the walls' inner faces, in metres; negative in the walls and beyond."""
    return np.minimum(
        np.minimum(x_HW, ARENA_M[0] - x_HW) - WALL_M, np.minimum(y_HW, ARENA_M[1] - y_HW) - WALL_M
    ).astype(np.float32)


def _distance(x_HW: Float32, y_HW: Float32, centre_T2: Float32) -> Float32:
    dx_THW = x_HW[None] - centre_T2[:, 0, None, None]
    dy_THW = y_HW[None] - centre_T2[:, 1, None, None]
    return np.sqrt(dx_THW * dx_THW + dy_THW * dy_THW)


def _coverage(signed_distance: Float32, pixel_m: float | Float32) -> Float32:
    return np.clip(0.5 - signed_distance / pixel_m, 0.0, 1.0).astype(np.float32)


def _paint(frames_THWC: Float32, cover_THW: Float32, colour: Colour) -> None:
    frames_THWC += cover_THW[..., None] * (np.asarray(colour, dtype=np.float32) - frames_THWC)


def _shade(colour: Colour, factor: float) -> Colour:
    return colour[0] * factor, colour[1] * factor, colour[2] * factor


def _to_uint8(frames_THWC: Float32) -> npt.NDArray[np.uint8]:
    return np.clip(frames_THWC + 0.5, 0.0, 255.0).astype(np.uint8)
