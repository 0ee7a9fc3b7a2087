"""From a decoder's frame to a picture of the batch: colour, size, rotation, layout, in the batch's own memory.

8-bit 4:2:0, 4:2:2 and 4:4:4 go through our own kernels (`kernels.py`), everything else through a swscale converter
that is kept. Colour follows FFmpeg's rules, so pictures look as PyAV, torchcodec and ffmpeg show them: docs/decisions/0021.
"""

# Shapes: H height, W width, C channels

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trajload.decode.context import DecodeContext
from trajload.decode.resize import nearest_indices, resize_planes
from trajload.errors import DecodeError
from trajload.refs import VideoIndex
from trajload.spec import StreamSpec
from trajload.types import Modality, NDArray

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

__all__ = ["check_picture", "finish_picture", "kernel_layout", "write_picture", "yuv_coefficients"]

# pixel format -> (chroma columns, chroma rows) per luma sample, as shifts
_YUV_LAYOUTS = {
    "yuv420p": (1, 1),
    "yuvj420p": (1, 1),
    "yuv422p": (1, 0),
    "yuvj422p": (1, 0),
    "yuv444p": (0, 0),
    "yuvj444p": (0, 0),
}

# Luma weights (Kr, Kb) of ITU-R BT.601, BT.709, BT.2020, SMPTE 240M and FCC. Unspecified is BT.601 at every size:
# that is what swscale, hence PyAV, torchcodec and the ffmpeg command, make of such a stream.
_LUMA_WEIGHTS = {
    "unspecified": (0.299, 0.114),
    "bt470bg": (0.299, 0.114),
    "smpte170m": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020nc": (0.2627, 0.0593),
    "smpte240m": (0.212, 0.087),
    "fcc": (0.30, 0.11),
}

FIXED_BITS = 16
"""Fraction bits of the kernels' coefficients: with 8-bit samples all sums stay inside int32."""


def kernel_layout(pix_fmt: str, color_space: str) -> tuple[int, int] | None:
    """Return the chroma shifts (columns, rows) if our kernels convert this stream, None if swscale does."""
    return _YUV_LAYOUTS.get(pix_fmt) if color_space in _LUMA_WEIGHTS else None


def yuv_coefficients(pix_fmt: str, color_space: str, color_range: str) -> NDArray:
    """Return int32 (6,): luma gain, luma offset, and gains of V in red, U and V in green, U in blue."""
    kr, kb = _LUMA_WEIGHTS[color_space]
    is_full = color_range == "full" or pix_fmt.startswith("yuvj")
    gain = 1.0 if is_full else 255 / 219
    chroma = 1.0 if is_full else 255 / 224
    kg = 1 - kr - kb
    one = 1 << FIXED_BITS
    values = (
        gain,
        0.0,
        2 * (1 - kr) * chroma,
        -2 * (1 - kb) * kb / kg * chroma,
        -2 * (1 - kr) * kr / kg * chroma,
        2 * (1 - kb) * chroma,
    )
    out = np.array([round(v * one) for v in values], dtype=np.int32)
    out[1] = -out[0] * (0 if is_full else 16) + one // 2  # with the half that makes the shift round
    return out


def check_picture(index: VideoIndex, spec: StreamSpec) -> None:
    """Raise DecodeError unless the video shows pictures of the size (and, for depth, the type) the spec declares."""
    height, width = (index.width, index.height) if index.rotation in (90, 270) else (index.height, index.width)
    if (height, width) != spec.shape[:2]:
        raise DecodeError(
            f"the video of stream {spec.name!r} shows {height} x {width} pictures, expected {spec.shape[0]} x {spec.shape[1]} "
            "(H x W) by its spec. Run 'trajload doctor'."
        )
    if spec.modality is Modality.RGB:
        return
    kinds = {"gray": "uint8", "gray16le": "uint16"}
    if kinds.get(index.pix_fmt) != spec.dtype or spec.shape[2] != 1:
        raise DecodeError(
            f"the video of stream {spec.name!r} ({spec.modality}) has pixel format {index.pix_fmt!r}, which does not hold "
            f"{spec.shape[2]} channel(s) of {spec.dtype} exactly: expected 'gray' for uint8 or 'gray16le' for uint16."
        )


def write_picture(frame: VideoFrame, out: NDArray, index: VideoIndex, spec: StreamSpec, context: DecodeContext) -> None:
    """Write one decoded frame to `out` (C, H, W), converted, resized and turned."""
    if spec.modality is not Modality.RGB:
        dtype = np.dtype("<u2" if index.pix_fmt == "gray16le" else "u1")
        plane = frame.planes[0]
        row = plane.line_size // dtype.itemsize
        picture = np.frombuffer(plane, dtype=dtype)[: row * index.height].reshape(index.height, row)
        finish_picture(picture[None, :, : index.width], out, index.rotation, False, context)
        return
    is_direct = index.rotation == 0 and out.shape[1:] == (index.height, index.width)
    rgb = out if is_direct else context.scratch("rgb", (3, index.height, index.width), np.uint8)
    _convert(frame, rgb, index, context)
    if not is_direct:
        finish_picture(rgb, out, index.rotation, True, context)


def _convert(frame: VideoFrame, rgb: NDArray, index: VideoIndex, context: DecodeContext) -> None:
    """Write the frame as planar RGB (3, H, W) of its own size."""
    from trajload.decode import kernels

    layout = kernel_layout(index.pix_fmt, index.color_space)
    if layout is None:
        # One thread: swscale's own would multiply with the decoder threads. Bit-exact flags keep machines alike.
        converted = context.reformatter(index.pix_fmt, index.width, index.height).reformat(
            frame, format="rgb24", interpolation=_SWS_FLAGS, threads=1
        )
        plane = converted.planes[0]
        kernels.deinterleave_rgb(np.frombuffer(plane, dtype=np.uint8), plane.line_size, rgb)
        return
    y, u, v = frame.planes
    key = (index.pix_fmt, index.color_space, index.color_range)
    kernels.yuv_to_rgb(
        np.frombuffer(y, dtype=np.uint8),
        np.frombuffer(u, dtype=np.uint8),
        np.frombuffer(v, dtype=np.uint8),
        y.line_size,
        u.line_size,
        layout[0],
        layout[1],
        context.coefficients(key),
        context.scratch("chroma", (3, index.width + 1), np.int32),
        rgb,
    )


# SWS_BILINEAR | SWS_ACCURATE_RND | SWS_BITEXACT
_SWS_FLAGS = 2 | 0x40000 | 0x80000


def finish_picture(picture: NDArray, out: NDArray, rotation: int, smooth: bool, context: DecodeContext) -> None:
    """Write `picture` (C, h, w) to `out` (C, H, W), resized where sizes differ and turned clockwise by `rotation`.

    `smooth` averages (colour); without it the nearest sample is taken (depth, whose averages would be invented).
    """
    turned = rotation in (90, 270)
    size = (out.shape[2], out.shape[1]) if turned else (out.shape[1], out.shape[2])
    if picture.shape[1:] != size:
        if smooth:
            target = out if rotation == 0 else context.scratch("resized", (out.shape[0], *size), np.uint8)
            resize_planes(picture, target, context)
            if rotation == 0:
                return
            picture = target
        else:
            rows, columns = nearest_indices(picture.shape[1], size[0]), nearest_indices(picture.shape[2], size[1])
            picture = picture[:, rows[:, None], columns[None, :]]
    out[...] = np.rot90(picture, k=-rotation // 90, axes=(1, 2)) if rotation else picture
