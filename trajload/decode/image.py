"""JPEG and PNG: colour to RGB, depth bit for bit, upright as shown.

Pillow can read all of them. The usual PNGs go through `png.py`, the pixels of usual JPEGs through `jpeg.py`: both faster,
neither different by a byte.
"""

# Shapes: T rows asked for, H height, W width, C channels

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image as PillowImage
from PIL import ImageOps

from trajload.decode.arrays import check_bytes
from trajload.decode.context import DecodeContext
from trajload.decode.pixels import finish_picture
from trajload.decode.plan import Blobs, plan_reads
from trajload.errors import DecodeError, words_of
from trajload.refs import ImageTrack, TableTrack
from trajload.spec import Image, StreamRequest, StreamSpec
from trajload.types import Int64Array, Modality, NDArray

__all__ = ["decode_image_table", "decode_images", "write_image"]

_FORMATS = {"jpg": ("JPEG",), "png": ("PNG",)}
# What brings a picture (H, W, C) of each EXIF orientation upright.
_UPRIGHT: dict[int, Callable[[NDArray], NDArray]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a[::-1].transpose(1, 0, 2),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: a[:, ::-1].transpose(1, 0, 2),
}
# EXIF orientations that swap height and width when the picture is turned upright.
_TURNED = (5, 6, 7, 8)


def decode_images(
    track: ImageTrack,
    rows: Int64Array,
    blobs: list[bytes],
    out: NDArray,
    *,
    spec: StreamSpec,
    request: StreamRequest,
    context: DecodeContext,
) -> None:
    """Write the picture of row `rows[i]` to `out[i]` (C, H, W); a row asked for twice is decoded once."""
    source = Blobs(plan_reads(track, rows), blobs)
    first_of: dict[int, int] = {}
    for i, row in enumerate(rows.tolist()):
        if row in first_of:
            out[i] = out[first_of[row]]
            continue
        first_of[row] = i
        offset = int(track.offset_N[row])
        data = source.view(offset, int(track.size_N[row]))
        what = f"image {row} of stream {spec.name!r}"
        check_bytes(what, track.file, offset, data, int(track.checksum_N[row]))
        write_image(data, track.encoding, out[i], what, spec=spec, request=request, context=context)


def decode_image_table(
    track: TableTrack,
    rows: Int64Array,
    out: NDArray,
    *,
    spec: StreamSpec,
    request: StreamRequest,
    context: DecodeContext,
) -> None:
    """Write pictures that a foreign source's reader hands out encoded, one `bytes` a row, to `out` (T, C, H, W)."""
    values = track.reader.read_rows(rows)
    if len(values) != len(rows) or not all(isinstance(value, bytes) for value in values):
        kinds = sorted({type(value).__name__ for value in values})
        raise DecodeError(
            f"table {track.file!r} gave {len(values)} values of {', '.join(kinds)} for {len(rows)} rows of stream "
            f"{spec.name!r}: expected encoded pictures as bytes."
        )
    done: dict[int, int] = {}
    for i, (row, data) in enumerate(zip(rows.tolist(), values, strict=True)):
        if row in done:
            out[i] = out[done[row]]
            continue
        # One column may hold both kinds, so the bytes say which; anything else is refused as a damaged png.
        encoding = "jpg" if data.startswith(b"\xff\xd8") else "png"
        what = f"image {row} of stream {spec.name!r}"
        write_image(data, encoding, out[i], what, spec=spec, request=request, context=context)
        done[row] = i


def write_image(
    data: bytes | memoryview,
    encoding: str,
    out_CHW: NDArray,
    what: str,
    *,
    spec: StreamSpec,
    request: StreamRequest,
    context: DecodeContext,
) -> None:
    """Write one picture to `out_CHW`, upright, resized where its size differs from the stored one.

    Colour: gray is repeated into three channels, palettes and CMYK are converted, an alpha channel is dropped (the
    colour stored under it is kept; nothing is blended). 16-bit gray is depth and never colour.

    Raises:
        DecodeError: Truncated or not of that format, or not the shape and type the spec declares.
    """
    is_color = spec.modality is Modality.RGB
    if encoding == "png" and _write_plain_png(data, out_CHW, spec, context):
        return
    wanted = out_CHW.shape[1:] if isinstance(request, Image) and request.jpeg_scaling else None
    picture = _decode(bytes(data), encoding, spec, what, wanted, context)
    planes = context.scratch("image", (picture.shape[2], *picture.shape[:2]), picture.dtype)
    target = out_CHW if planes.shape == out_CHW.shape else planes
    if is_color:
        from trajload.decode import kernels

        kernels.deinterleave_rgb(picture.reshape(-1), picture.shape[1] * 3, target)
    else:
        target[...] = np.moveaxis(picture, 2, 0)
    if target is planes:
        finish_picture(planes, out_CHW, 0, is_color, context)


def _write_plain_png(data: bytes | memoryview, out_CHW: NDArray, spec: StreamSpec, context: DecodeContext) -> bool:
    """Do what `write_image` does for a PNG that `png.py` can decode and that is as its spec says; False if it is not."""
    from trajload.decode.png import decode_png, read_plain_png

    found = read_plain_png(data)
    if found is None or (found.height, found.width) != spec.shape[:2]:
        return False
    is_color = spec.modality is Modality.RGB
    if is_color:
        if found.sample_bytes != 1:
            return False
    elif (found.channels, spec.shape[2]) != (1, 1) or np.dtype(spec.dtype) != np.dtype(f"u{found.sample_bytes}"):
        return False
    shape = (out_CHW.shape[0], found.height, found.width)
    if shape == out_CHW.shape:
        return decode_png(found, out_CHW, context)
    planes = context.scratch("image", shape, out_CHW.dtype)
    if not decode_png(found, planes, context):
        return False
    finish_picture(planes, out_CHW, 0, is_color, context)
    return True


def _decode(
    data: bytes,
    encoding: str,
    spec: StreamSpec,
    what: str,
    wanted: tuple[int, ...] | None,
    context: DecodeContext,
) -> NDArray:
    """Return one picture (H, W, C), upright, C-contiguous; a JPEG in the smallest scale that holds `wanted` (H, W)."""
    try:
        with PillowImage.open(io.BytesIO(data), formats=_FORMATS[encoding]) as image:
            orientation = image.getexif().get(0x0112, 1)
            turned = orientation in _TURNED
            shown = image.size if turned else image.size[::-1]
            # before the pixels are unpacked, so that a hostile header costs no memory
            if shown != spec.shape[:2]:
                raise DecodeError(
                    f"{what} shows {shown[0]} x {shown[1]}, expected {spec.shape[0]} x {spec.shape[1]} (H x W) by its spec. Run 'trajload doctor'."
                )
            if encoding == "jpg" and spec.modality is Modality.RGB:
                return _decode_jpeg(image, data, orientation, what, wanted, context)
            image.load()
            upright = ImageOps.exif_transpose(image)
            array = _color(upright, what) if spec.modality is Modality.RGB else _exact(upright, spec, what)
    except DecodeError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, PillowImage.DecompressionBombError) as err:
        raise DecodeError(
            f"{what} is not a whole {encoding} picture: {words_of(err)} ({len(data)} bytes that begin with {data[:8]!r}). Restore or drop it."
        ) from err
    return np.ascontiguousarray(array)


def _decode_jpeg(
    image: PillowImage.Image,
    data: bytes,
    orientation: int,
    what: str,
    wanted: tuple[int, ...] | None,
    context: DecodeContext,
) -> NDArray:
    from trajload.decode.jpeg import jpeg_scale, scaled_size

    stored = image.size[::-1]
    scale, size = 1, stored
    if wanted is not None:
        height, width = wanted[::-1] if orientation in _TURNED else wanted
        scale, size = scaled_size(stored, (height, width))
    # CMYK is converted by Pillow's rules, which differ from libjpeg's
    decode = context.fast_jpeg() if image.mode in ("RGB", "L") else None
    array = decode(data, *size) if decode is not None else None
    if array is None:
        array = _color(jpeg_scale(image, scale), what)
    turn = _UPRIGHT.get(orientation)
    return np.ascontiguousarray(array if turn is None else turn(array))


def _color(image: PillowImage.Image, what: str) -> NDArray:
    if image.mode == "F" or image.mode.startswith("I"):
        raise DecodeError(
            f"{what} holds {image.mode!r} values (more than 8 bits), which are not colour. Declare the stream as depth."
        )
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _exact(image: PillowImage.Image, spec: StreamSpec, what: str) -> NDArray:
    """Return the stored values (H, W, C) without any conversion of their meaning."""
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    wanted = np.dtype(spec.dtype)
    if image.mode == "I" and wanted == np.uint16 and array.min() >= 0 and array.max() <= 0xFFFF:
        array = array.astype(np.uint16)  # Pillow before 10.3 opens 16-bit PNG as 32-bit integers
    if image.mode == "I;16B":
        array = array.astype(np.uint16)
    if image.mode == "P" or array.dtype != wanted or array.shape[2] != spec.shape[2]:
        raise DecodeError(
            f"{what} holds {array.shape[2]} channel(s) of {array.dtype} (mode {image.mode!r}), expected {spec.shape[2]} of {wanted} by its spec."
        )
    return array
