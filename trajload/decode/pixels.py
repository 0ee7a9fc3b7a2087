"""From a decoder's frame to a picture of the batch: colour, size, rotation, layout, in the batch's own memory.

8-bit 4:2:0 and 4:4:4 go through our own kernels (`kernels.py`), everything else through a swscale converter
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
    from av.video.plane import VideoPlane

__all__ = [
    "check_picture",
    "finish_picture",
    "is_matrix_known",
    "kernel_of",
    "swscale_coefficients",
    "write_picture",
    "yuv_coefficients",
]

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

# SWS_BILINEAR, swscale's default and PyAV's: the same rules as everywhere else, hence the same pictures.
_SWS_FLAGS = 2


def kernel_of(pix_fmt: str, color_space: str, height: int) -> str | None:
    """Return '420' or '444' if our kernels convert such a stream, None if swscale does.

    At odd heights swscale takes another path for 4:2:0, with interpolated chroma; those few streams go to it.
    """
    if color_space not in _LUMA_WEIGHTS:
        return None
    if pix_fmt in ("yuv420p", "yuvj420p") and height % 2 == 0:
        return "420"
    return "444" if pix_fmt in ("yuv444p", "yuvj444p") else None


def is_matrix_known(color_space: str) -> bool:
    """Return whether we convert that colour space ourselves."""
    return color_space in _LUMA_WEIGHTS


def _gains(pix_fmt: str, color_space: str, color_range: str) -> tuple[bool, tuple[float, ...]]:
    """Return whether samples use the full range, and gains: luma, V in red, U and V in green, U in blue."""
    kr, kb = _LUMA_WEIGHTS[color_space]
    kg = 1 - kr - kb
    is_full = color_range == "full" or pix_fmt.startswith("yuvj")
    luma, chroma = (1.0, 1.0) if is_full else (255 / 219, 255 / 224)
    red, blue = 2 * (1 - kr) * chroma, 2 * (1 - kb) * chroma
    return is_full, (luma, red, -blue * kb / kg, -red * kr / kg, blue)


def yuv_coefficients(pix_fmt: str, color_space: str, color_range: str) -> NDArray:
    """Return int32 (6,) for `yuv444_to_rgb`, 16 fraction bits: luma gain, offset, then the four chroma gains."""
    is_full, gains = _gains(pix_fmt, color_space, color_range)
    luma, *chroma = (round(g * 65536) for g in gains)
    # the half makes the shift round
    return np.array([luma, 32768 - (0 if is_full else 16 * luma), *chroma], dtype=np.int32)


def swscale_coefficients(pix_fmt: str, color_space: str, color_range: str) -> NDArray:
    """Return int32 (6,) for `yuv420_to_rgb`: luma gain, offset, then the four chroma gains, 13 fraction bits.

    Samples count eighths there and the product keeps its upper 16 bits: 3 + 13 = 16.
    """
    is_full, gains = _gains(pix_fmt, color_space, color_range)
    luma, *chroma = (round(g * 8192) for g in gains)
    return np.array([luma, 0 if is_full else 16 << 3, *chroma], dtype=np.int32)


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
        picture = _samples(plane).view(dtype)[: row * index.height].reshape(index.height, row)
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

    kernel = kernel_of(index.pix_fmt, index.color_space, index.height)
    if kernel is None:
        # one thread: swscale's own would multiply with the decoder threads
        converted = context.reformatter(index.pix_fmt, index.width, index.height).reformat(
            frame, format="rgb24", interpolation=_SWS_FLAGS, threads=1
        )
        plane = converted.planes[0]
        kernels.deinterleave_rgb(_samples(plane), plane.line_size, rgb)
        return
    y, u, v = frame.planes
    tag = (index.pix_fmt, index.color_space, index.color_range)
    planes = (_samples(y), _samples(u), _samples(v), y.line_size, u.line_size, context.coefficients(kernel, *tag))
    if kernel == "420":
        kernels.yuv420_to_rgb(*planes, rgb)
    else:
        kernels.yuv444_to_rgb(*planes, rgb)


def _samples(plane: VideoPlane) -> NDArray:
    return np.frombuffer(plane, dtype=np.uint8)  # type: ignore[call-overload, no-any-return]


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
