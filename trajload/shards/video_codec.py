"""Opening decoders from a packet table, and what the first bytes of a packet say about it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from trajload.errors import DecodeError, SourceError
from trajload.refs import VideoIndex

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

__all__ = [
    "COLOR_RANGES",
    "COLOR_RANGE_NUMBERS",
    "COLOR_SPACES",
    "COLOR_SPACE_NUMBERS",
    "SUPPORTED_CODECS",
    "clockwise_rotation",
    "decodable_pts",
    "derive_pts",
    "is_hidden",
    "is_random_access",
    "open_decoder",
]

# FFmpeg family -> decoders to try. 'av1' names FFmpeg's own decoder, which only drives hardware.
SUPPORTED_CODECS: dict[str, tuple[str, ...]] = {
    "h264": ("h264",),
    "hevc": ("hevc",),
    "av1": ("libdav1d", "libaom-av1"),
    "vp9": ("vp9", "libvpx-vp9"),
    "vp8": ("vp8", "libvpx"),
    "mpeg4": ("mpeg4",),
    "mpeg2video": ("mpeg2video",),
    "ffv1": ("ffv1",),
    "mjpeg": ("mjpeg",),
}

# AVColorSpace and AVColorRange by number, with FFmpeg's names.
COLOR_SPACES = {
    0: "rgb",
    1: "bt709",
    2: "unspecified",
    4: "fcc",
    5: "bt470bg",
    6: "smpte170m",
    7: "smpte240m",
    8: "ycgco",
    9: "bt2020nc",
    10: "bt2020c",
}
COLOR_RANGES = {0: "unspecified", 1: "limited", 2: "full"}
COLOR_SPACE_NUMBERS = {name: number for number, name in COLOR_SPACES.items()}
COLOR_RANGE_NUMBERS = {name: number for number, name in COLOR_RANGES.items()}

_ANNEX_B = b"\x00\x00\x01"


def open_decoder(index: VideoIndex) -> VideoCodecContext:
    """Return an open, single-threaded decoder for the stream, without any container.

    Raises:
        DecodeError: This build of FFmpeg has no decoder for the codec, or the codec's header is unusable.
    """
    import av

    names = SUPPORTED_CODECS.get(index.codec)
    if names is None:
        raise DecodeError(
            f"codec {index.codec!r} is not supported: expected one of {', '.join(map(repr, SUPPORTED_CODECS))}. "
            "Re-encode the videos (ffmpeg -i IN -c:v libx264 OUT.mp4) or drop the stream."
        )
    for name in names:
        try:
            codec = av.Codec(name, "r")
        except ValueError:
            continue
        context: VideoCodecContext = av.CodecContext.create(codec, "r")  # type: ignore[assignment]
        context.extradata = index.extradata or None
        context.thread_count = 1
        context.width, context.height = index.width, index.height
        context.pix_fmt = index.pix_fmt
        # Containers may state the colour where the stream does not.
        context.colorspace = COLOR_SPACE_NUMBERS.get(index.color_space, 2)
        context.color_range = COLOR_RANGE_NUMBERS.get(index.color_range, 0)
        try:
            context.open()
        except (av.FFmpegError, ValueError) as err:
            raise DecodeError(
                f"decoder {name!r} refuses the stream's header ({len(index.extradata)} bytes): {err}. The index or the video is damaged."
            ) from err
        return context
    raise DecodeError(
        f"codec {index.codec!r} has no decoder here: tried {', '.join(map(repr, names))}. Install a PyAV build that has one, or re-encode."
    )


def decodable_pts(index: VideoIndex, packets: list[bytes]) -> list[int]:
    """Return the pts of the frames that come out of the stream's first `packets`, up to the first error."""
    import av

    decoder = open_decoder(index)
    out: list[int] = []
    try:
        for data, pts in zip([*packets, None], [*index.pts_P[: len(packets)].tolist(), None], strict=True):
            packet = None
            if data is not None:
                packet = av.Packet(len(data))
                packet.update(data)
                packet.pts = pts
            out += [frame.pts for frame in decoder.decode(packet) if frame.pts is not None]
    except av.FFmpegError:
        pass
    return out


def _nal_headers(data: memoryview | bytes, length_size: int) -> list[tuple[int, int]]:
    """Return (offset, size) of each NAL unit of a packet; `length_size` 0 means start codes (Annex B)."""
    units: list[tuple[int, int]] = []
    raw = bytes(data)
    if length_size:
        at = 0
        while at + length_size < len(raw):
            size = int.from_bytes(raw[at : at + length_size], "big")
            at += length_size
            units.append((at, min(size, len(raw) - at)))
            at += size
        return units
    at = raw.find(_ANNEX_B)
    while at >= 0:
        start = at + 3
        at = raw.find(_ANNEX_B, start)
        units.append((start, (at if at >= 0 else len(raw)) - start))
    return units


def _length_size(codec: str, extradata: bytes) -> int:
    """Return the bytes of a NAL length field as avcC or hvcC declare it, 0 for start codes."""
    if codec == "h264" and len(extradata) > 6 and extradata[0] == 1:
        return (extradata[4] & 3) + 1
    if codec == "hevc" and len(extradata) > 22 and extradata[0] == 1:
        return (extradata[21] & 3) + 1
    return 0


def _recovers_at_once(payload: bytes) -> bool | None:
    """Return whether an SEI NAL unit has a recovery point of distance 0; None where it has none at all."""
    data = payload[1:].replace(b"\x00\x00\x03", b"\x00\x00")
    at = 0
    while at + 2 <= len(data) and data[at] != 0x80:
        kind = size = 0
        while at < len(data) and data[at] == 0xFF:
            kind, at = kind + 255, at + 1
        if at >= len(data):
            break
        kind, at = kind + data[at], at + 1
        while at < len(data) and data[at] == 0xFF:
            size, at = size + 255, at + 1
        if at >= len(data):
            break
        size, at = size + data[at], at + 1
        if kind == 6 and at < len(data):
            # recovery_frame_cnt is an Exp-Golomb number: a leading 1 bit is the number 0
            return bool(data[at] & 0x80)
        at += size
    return None


def is_random_access(codec: str, extradata: bytes, data: memoryview | bytes) -> bool:
    """Return whether decoding may start at a packet that its container flags as a keyframe.

    H.264: an IDR picture, or a recovery point whose pictures are exact at once. An I picture without either, or the
    start of a gradual refresh, may still be followed by pictures that refer to earlier ones. HEVC: any IRAP picture.
    Others: the container is right.
    """
    if codec == "h264":
        raw = bytes(data)
        for offset, size in _nal_headers(raw, _length_size(codec, extradata)):
            kind = raw[offset] & 0x1F if size else 0
            if kind == 5:
                return True
            if kind == 6 and _recovers_at_once(raw[offset : offset + size]):
                return True
            if kind == 1:
                return False
        return False
    if codec == "hevc":
        raw = bytes(data)
        kinds = [(raw[o] >> 1) & 0x3F for o, size in _nal_headers(raw, _length_size(codec, extradata)) if size]
        return any(16 <= kind <= 21 for kind in kinds)
    return True


def is_hidden(codec: str, data: memoryview | bytes) -> bool:
    """Return whether a packet carries a picture that is never shown (VP8's alternate reference frames)."""
    return codec == "vp8" and len(data) > 0 and not bytes(data[:1])[0] & 0x10


def derive_pts(codec: str, packets: list[bytes]) -> None:
    """Raise SourceError unless the order of decoding is the order of display, so that dts can stand for pts."""
    if codec in ("mjpeg", "ffv1", "vp8", "vp9", "av1"):
        return
    if codec == "mpeg4":
        for i, data in enumerate(packets):
            at = data.find(b"\x00\x00\x01\xb6")
            count = data.count(b"\x00\x00\x01\xb6")
            if count != 1 or at + 4 >= len(data) or data[at + 4] >> 6 == 2:
                why = "a B picture" if count == 1 else f"{count} pictures"
                raise SourceError(
                    f"video has no presentation times, and packet {i} holds {why}, so the order of display is not known. "
                    "Convert it to mp4 (ffmpeg -fflags +genpts -i IN -c copy OUT.mp4), or re-encode."
                )
        return
    raise SourceError(
        f"video has no presentation times, and {codec!r} may show pictures in another order than it stores them. "
        "Convert it to mp4 with true timestamps, or re-encode."
    )


def clockwise_rotation(frame: VideoFrame) -> int:
    """Return the clockwise turn that shows the picture upright; refuse mirrored and slanted display matrices."""
    sides: Any = frame.side_data
    for side in sides:
        if side.type.name == "DISPLAYMATRIX":
            m = struct.unpack("=9i", bytes(side)[:36])
            if m[0] * m[4] - m[1] * m[3] < 0:
                raise SourceError("the display matrix mirrors the picture, which is not supported. Re-encode it.")
    clockwise = -int(frame.rotation) % 360
    if clockwise % 90:
        raise SourceError(
            f"the display matrix turns the picture by {clockwise} degrees: expected a multiple of 90. Re-encode it."
        )
    return clockwise
