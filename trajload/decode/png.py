"""The usual PNGs (8-bit gray, RGB and RGBA, 16-bit gray) straight into the batch: inflate, unfilter and lay out.

PNG is lossless, so there is one right answer, and this gives it in about two thirds of Pillow's time. Whatever is not
plainly one of these and whole is left to Pillow, which also finds the words for what is wrong.
"""

# Shapes: C channels, H height, W width

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trajload.jit import compiled
from trajload.types import NDArray

if TYPE_CHECKING:
    from trajload.decode.context import DecodeContext

__all__ = ["PlainPng", "decode_png", "read_plain_png"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# (colour type, bit depth) -> channels
_LAYOUTS = {(0, 8): 1, (0, 16): 1, (2, 8): 3, (6, 8): 4}
# Chunks that change no sample. Texts are not among them: Pillow finds orientations there.
_HARMLESS = frozenset((b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"pHYs", b"tIME", b"bKGD", b"iCCP", b"hIST", b"tRNS"))


@dataclass(frozen=True, slots=True)
class PlainPng:
    """A PNG that `decode_png` can decode."""

    height: int
    width: int
    channels: int
    sample_bytes: int
    packed: bytes
    """The zlib stream of all its IDAT chunks."""


def read_plain_png(data: bytes | memoryview) -> PlainPng | None:
    """Return the parts of a PNG of a usual kind whose chunks are whole, or None for Pillow to look at it."""
    view = memoryview(data)
    if bytes(view[:8]) != _SIGNATURE:
        return None
    header: PlainPng | None = None
    parts: list[memoryview] = []
    at = 8
    while at + 12 <= len(view):
        (size,) = struct.unpack(">I", view[at : at + 4])
        kind, body, end = bytes(view[at + 4 : at + 8]), view[at + 8 : at + 8 + size], at + 12 + size
        if end > len(view) or zlib.crc32(view[at + 4 : at + 8 + size]) != struct.unpack(">I", view[end - 4 : end])[0]:
            return None
        if at == 8:
            header = _read_header(kind, body)
            if header is None:
                return None
        elif kind == b"IDAT":
            parts.append(body)
        elif kind == b"IEND":
            if header is None or not parts:
                return None
            return PlainPng(header.height, header.width, header.channels, header.sample_bytes, b"".join(parts))
        elif kind not in _HARMLESS:
            return None
        at = end
    return None


def _read_header(kind: bytes, body: memoryview) -> PlainPng | None:
    if kind != b"IHDR" or len(body) != 13:
        return None
    width, height, depth, colour, *methods = struct.unpack(">IIBBBBB", body)
    channels = _LAYOUTS.get((colour, depth))
    # compression and filter methods are 0 by the standard; interlacing is Pillow's
    if channels is None or any(methods) or not width or not height:
        return None
    return PlainPng(height, width, channels, depth // 8, b"")


def decode_png(png: PlainPng, out_CHW: NDArray, context: DecodeContext) -> bool:
    """Write the picture to `out_CHW` and return True, or return False if its data are not whole.

    `out_CHW` is (3, H, W) uint8 for colour (gray is repeated, alpha dropped), or (1, H, W) of the gray samples' type.
    It may be half written where the answer is False.
    """
    row_bytes = png.width * png.channels * png.sample_bytes
    size = png.height * (1 + row_bytes)
    inflate = zlib.decompressobj()
    try:
        # one byte more than promised would show that there is more
        plain = inflate.decompress(png.packed, size + 1)
    except zlib.error:
        return False
    # the end carries the checksum of the whole
    if len(plain) != size or not inflate.eof:
        return False
    rows = context.scratch("png_rows", (2, row_bytes + 8), np.uint8)
    samples = np.frombuffer(plain, dtype=np.uint8)
    if png.sample_bytes == 2:
        return bool(_unfilter_words(samples, rows, out_CHW))
    return bool(_unfilter_bytes(samples, png.channels, rows, out_CHW))


@compiled
def _predict(left: np.int32, up: np.int32, corner: np.int32) -> np.int32:
    """Return Paeth's choice: whichever neighbour is nearest to left + up - corner, ties in that order."""
    by_left, by_up = up - corner, left - corner
    by_corner = abs(by_left + by_up)
    by_left, by_up = abs(by_left), abs(by_up)
    best = up if by_up <= by_corner else corner
    return left if by_left <= by_up and by_left <= by_corner else best


# The neighbour to the left is the one just made: kept in registers, one chain a channel runs beside the others.


@compiled
def _paeth_3(line: NDArray, above: NDArray, out: NDArray) -> None:
    a0 = a1 = a2 = c0 = c1 = c2 = np.int32(0)
    for x in range(0, len(line), 3):
        b0, b1, b2 = np.int32(above[8 + x]), np.int32(above[9 + x]), np.int32(above[10 + x])
        a0 = (np.int32(line[x]) + _predict(a0, b0, c0)) & np.int32(255)
        a1 = (np.int32(line[x + 1]) + _predict(a1, b1, c1)) & np.int32(255)
        a2 = (np.int32(line[x + 2]) + _predict(a2, b2, c2)) & np.int32(255)
        out[8 + x], out[9 + x], out[10 + x] = np.uint8(a0), np.uint8(a1), np.uint8(a2)
        c0, c1, c2 = b0, b1, b2


@compiled
def _paeth_2(line: NDArray, above: NDArray, out: NDArray) -> None:
    a0 = a1 = c0 = c1 = np.int32(0)
    for x in range(0, len(line), 2):
        b0, b1 = np.int32(above[8 + x]), np.int32(above[9 + x])
        a0 = (np.int32(line[x]) + _predict(a0, b0, c0)) & np.int32(255)
        a1 = (np.int32(line[x + 1]) + _predict(a1, b1, c1)) & np.int32(255)
        out[8 + x], out[9 + x] = np.uint8(a0), np.uint8(a1)
        c0, c1 = b0, b1


@compiled
def _unfilter_row(kind: int, line: NDArray, above: NDArray, step: int, out: NDArray) -> None:
    """Write the samples of one row; rows begin at 8, with zeros in front, as the filters want it."""
    count = len(line)
    if kind == 0:
        for x in range(count):
            out[8 + x] = line[x]
    elif kind == 1:
        for x in range(count):
            out[8 + x] = line[x] + out[8 + x - step]
    elif kind == 2:
        for x in range(count):
            out[8 + x] = line[x] + above[8 + x]
    elif kind == 3:
        for x in range(count):
            mean = (np.int32(out[8 + x - step]) + np.int32(above[8 + x])) >> np.int32(1)
            out[8 + x] = np.uint8(np.int32(line[x]) + mean)
    elif step == 3:
        _paeth_3(line, above, out)
    elif step == 2:
        _paeth_2(line, above, out)
    else:
        for x in range(count):
            left, up, corner = np.int32(out[8 + x - step]), np.int32(above[8 + x]), np.int32(above[8 + x - step])
            out[8 + x] = np.uint8(np.int32(line[x]) + _predict(left, up, corner))


@compiled
def _unfilter_bytes(samples: NDArray, channels: int, rows: NDArray, out: NDArray) -> bool:
    num_planes, height, width = out.shape
    row_bytes = width * channels
    rows[:] = 0
    for y in range(height):
        start = y * (row_bytes + 1)
        kind = samples[start]
        if kind > 4:
            return False
        row = rows[y & 1]
        _unfilter_row(kind, samples[start + 1 : start + 1 + row_bytes], rows[1 - (y & 1)], channels, row)
        for c in range(num_planes):
            plane, first = out[c, y], 8 + (c if channels > 1 else 0)
            for x in range(width):
                plane[x] = row[first + x * channels]
    return True


@compiled
def _unfilter_words(samples: NDArray, rows: NDArray, out: NDArray) -> bool:
    """Write 16-bit gray, which PNG stores big-endian."""
    height, width = out.shape[1], out.shape[2]
    row_bytes = width * 2
    rows[:] = 0
    for y in range(height):
        start = y * (row_bytes + 1)
        kind = samples[start]
        if kind > 4:
            return False
        row, plane = rows[y & 1], out[0, y]
        _unfilter_row(kind, samples[start + 1 : start + 1 + row_bytes], rows[1 - (y & 1)], 2, row)
        for x in range(width):
            plane[x] = (np.uint16(row[8 + 2 * x]) << np.uint16(8)) | np.uint16(row[9 + 2 * x])
    return True
