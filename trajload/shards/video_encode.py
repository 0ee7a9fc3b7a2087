"""Writing videos that decode fast and the same everywhere: short closed groups, tagged colour, one thread."""

# Shapes: H height, W width, N frames

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trajload.arguments import explains_calls
from trajload.errors import ConfigError, SourceError
from trajload.types import Int64Array, NDArray

__all__ = ["VideoEncode", "encode_video", "remux_video"]

Codec = Literal["h264", "hevc", "av1", "vp9", "ffv1"]

_ENCODERS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1", "vp9": "libvpx-vp9", "ffv1": "ffv1"}
_PRESETS: dict[str, str | None] = {"h264": "medium", "hevc": "medium", "av1": "8", "vp9": "4", "ffv1": None}
_MAX_CRF = {"h264": 51, "hevc": 51, "av1": 63, "vp9": 63, "ffv1": 0}
# What holds 8-bit RGB exactly, by codec; the encoder that takes it.
_LOSSLESS = {"h264": ("libx264rgb", "rgb24"), "hevc": ("libx265", "gbrp")}

_BT709 = 1
_LIMITED, _FULL = 1, 2
# SWS_BILINEAR | SWS_FULL_CHR_H_INP | SWS_ACCURATE_RND | SWS_BITEXACT: both chroma neighbours count, rounded, no SIMD variants
_SWS_FLAGS = 2 | 0x4000 | 0x40000 | 0x80000
_MICROSECOND = Fraction(1, 1_000_000)


@explains_calls
@dataclass(frozen=True, kw_only=True, slots=True)
class VideoEncode:
    """How frames of an rgb stream become a video. The defaults trade some bytes for cheap random windows."""

    codec: Codec = "h264"
    gop: int = 10
    """Frames from one keyframe to the next: a random window decodes half of it, on average, for nothing."""
    crf: int = 23
    """Constant quality: 0 best; up to 51 for h264 and hevc, 63 for av1 and vp9. Unused when lossless."""
    preset: str | None = None
    """Encoder effort; None takes medium (h264, hevc), 8 (av1), cpu-used 4 (vp9)."""
    pix_fmt: str | None = None
    """Stored format; None takes yuv420p, or yuv444p where height or width is odd."""
    lossless: bool = False
    """Keep every bit of the RGB values. Larger by a factor of 5 to 20."""
    b_frames: int = 0
    """h264 and hevc only: B frames in a row. They save some bytes and make each window decode more."""

    def __post_init__(self) -> None:
        if self.codec not in _ENCODERS:
            raise ConfigError(
                f"VideoEncode(codec={self.codec!r}) is unknown: expected one of {', '.join(map(repr, _ENCODERS))}."
            )
        for name, low, high in (("gop", 1, 10_000), ("crf", 0, max(_MAX_CRF[self.codec], 51)), ("b_frames", 0, 16)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
                raise ConfigError(f"VideoEncode({name}={value!r}) is invalid: expected an int in [{low}, {high}].")
            object.__setattr__(self, name, int(value))
        if self.lossless and self.codec not in _LOSSLESS and self.codec != "ffv1":
            raise ConfigError(
                f"VideoEncode(codec={self.codec!r}, lossless=True) does not exist: expected one of 'h264', 'hevc', 'ffv1'."
            )
        if self.lossless and self.pix_fmt is not None:
            raise ConfigError(
                f"VideoEncode(pix_fmt={self.pix_fmt!r}, lossless=True) contradict: lossless chooses the format itself."
            )
        if self.pix_fmt not in (None, "yuv420p", "yuv444p"):
            raise ConfigError(
                f"VideoEncode(pix_fmt={self.pix_fmt!r}) is unknown: expected 'yuv420p', 'yuv444p' or None."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a manifest's provenance states them."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one video's encoder is given, once the shape of its frames is known."""

    encoder: str
    source_format: str
    """Pixel format of the arrays as they come."""
    pix_fmt: str
    container: str
    options: dict[str, str]
    is_yuv: bool


def encode_video(
    frames: Iterable[NDArray], *, rate_hz: Fraction, encode: VideoEncode, pts_ns: Int64Array | None = None
) -> tuple[bytes, str]:
    """Return the bytes of a video and the encoding they have, 'mp4' or 'mkv'.

    Colour (H, W, 3) uint8 is stored as `encode` says, tagged BT.709 limited range. Depth uint16 and masks uint8, (H, W)
    or (H, W, 1), are stored bit for bit as FFV1 in Matroska, whatever `encode` says. Same arguments on the same build
    of FFmpeg, same bytes: one thread, no dates, no random identifiers.

    Args:
        frames: Arrays of one shape and dtype; at least one. Taken one at a time.
        rate_hz: Frames per second; the time of frame i is i / rate_hz where `pts_ns` is not given.
        encode: How.
        pts_ns: (N,) int64, strictly rising by at least a microsecond (a millisecond in Matroska): the time of each frame.

    Raises:
        ConfigError: No frame, a frame unlike the first, times that do not rise, or a size the codec cannot hold.
    """
    import av

    if not rate_hz > 0:
        raise ConfigError(f"rate_hz={rate_hz!r} is invalid: expected a rate above 0 Hz.")
    rate_hz = Fraction(rate_hz)
    arrays = iter(frames)
    try:
        first = np.asarray(next(arrays))
    except StopIteration:
        raise ConfigError("there are no frames to encode: got 0, expected at least 1.") from None
    plan = _plan(first, encode)
    buffer = io.BytesIO()
    try:
        with av.open(
            buffer,
            "w",
            format="matroska" if plan.container == "mkv" else "mp4",
            options={"fflags": "+bitexact"},
        ) as output:
            stream: Any = output.add_stream(plan.encoder, rate=rate_hz, options=plan.options)
            context = stream.codec_context
            context.width, context.height, context.pix_fmt = first.shape[1], first.shape[0], plan.pix_fmt
            context.time_base = _MICROSECOND if pts_ns is not None else 1 / rate_hz
            context.gop_size = 1 if plan.encoder == "ffv1" else encode.gop
            context.thread_count = 1
            context.flags |= av.codec.context.Flags.bitexact
            if plan.is_yuv:
                context.colorspace = context.color_primaries = context.color_trc = _BT709
                context.color_range = _LIMITED
            for frame in _frames(first, arrays, plan, rate_hz, pts_ns):
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    except (av.FFmpegError, ValueError) as err:
        if isinstance(err, ConfigError):
            raise
        raise ConfigError(
            f"{plan.encoder!r} refuses {first.shape[0]} x {first.shape[1]} frames as {plan.pix_fmt!r}: {err}. "
            "Choose another codec or pix_fmt, or resize the frames."
        ) from err
    return buffer.getvalue(), plan.container


def _plan(first: NDArray, encode: VideoEncode) -> _Plan:
    """Return how frames like `first` are encoded."""
    if first.size == 0:
        raise ConfigError(f"frames are {first.shape}: expected at least one pixel.")
    if first.ndim == 2 or (first.ndim == 3 and first.shape[2] == 1):
        formats = {"uint8": "gray", "uint16": "gray16le"}
        if first.dtype.name not in formats:
            raise ConfigError(
                f"one-channel frames are {first.dtype}: expected uint8 or uint16. Store others as npy.zst."
            )
        exact = formats[first.dtype.name]
        return _Plan("ffv1", exact, exact, "mkv", {"level": "3", "slicecrc": "1"}, False)
    if first.ndim != 3 or first.shape[2] != 3 or first.dtype != np.uint8:
        raise ConfigError(
            f"frames are {first.shape} {first.dtype}: expected (H, W, 3) uint8 for colour, or (H, W) or (H, W, 1) uint16 for depth."
        )
    if encode.codec == "ffv1":
        return _Plan("ffv1", "rgb24", "bgr0", "mkv", {"level": "3", "slicecrc": "1"}, False)
    is_odd = bool(first.shape[0] % 2 or first.shape[1] % 2)
    pix_fmt = encode.pix_fmt or ("yuv444p" if is_odd else "yuv420p")
    encoder = _ENCODERS[encode.codec]
    if encode.lossless:
        encoder, pix_fmt = _LOSSLESS[encode.codec]
    elif pix_fmt == "yuv420p" and is_odd:
        raise ConfigError(
            f"frames of {first.shape[0]} x {first.shape[1]} cannot be yuv420p, which pairs rows and columns. Leave pix_fmt=None."
        )
    elif pix_fmt == "yuv444p" and encode.codec == "av1":
        raise ConfigError(
            f"AV1 here holds yuv420p only, and frames are {first.shape[0]} x {first.shape[1]} with pix_fmt={encode.pix_fmt!r}. "
            "Use even sizes and yuv420p, or codec='h264'."
        )
    return _Plan(encoder, "rgb24", pix_fmt, "mp4", _options(encode), not encode.lossless)


def _options(encode: VideoEncode) -> dict[str, str]:
    """Return the encoder's private options: closed groups of fixed length, one thread."""
    preset = encode.preset or _PRESETS[encode.codec] or ""
    gop, b_frames, crf = encode.gop, encode.b_frames, str(encode.crf)
    if encode.codec == "h264":
        out = {"preset": preset, "sc_threshold": "0", "bf": str(b_frames), "x264-params": "open-gop=0:threads=1"}
        return out | ({"qp": "0"} if encode.lossless else {"crf": crf})
    if encode.codec == "hevc":
        params = f"pools=none:frame-threads=1:log-level=none:open-gop=0:scenecut=0:keyint={gop}:min-keyint={gop}:bframes={b_frames}"
        if encode.lossless:
            return {"preset": preset, "x265-params": params + ":lossless=1"}
        return {"preset": preset, "crf": crf, "x265-params": params}
    if encode.codec == "av1":
        return {"preset": preset, "crf": crf, "svtav1-params": "lp=1:scd=0:irefresh-type=2"}
    return {"crf": crf, "b": "0", "cpu-used": preset, "row-mt": "0"}


def _frames(
    first: NDArray, rest: Iterator[NDArray], plan: _Plan, rate_hz: Fraction, pts_ns: Int64Array | None
) -> Iterator[Any]:
    """Yield frames in the encoder's pixel format with their times."""
    import av
    from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

    reformatter = VideoReformatter()
    # Matroska counts milliseconds
    resolution_ns = 1_000_000 if plan.container == "mkv" else 1_000
    if pts_ns is None and plan.container == "mkv" and rate_hz > 1000:
        raise ConfigError(
            f"rate_hz={rate_hz} is above 1000 Hz, which Matroska cannot count. Store the stream as npy.zst."
        )
    previous: int | None = None
    number = -1
    for number, item in enumerate(_chain(first, rest)):
        array = np.ascontiguousarray(item)
        if array.shape != first.shape or array.dtype != first.dtype:
            raise ConfigError(
                f"frame {number} is {array.shape} {array.dtype}, expected {first.shape} {first.dtype} like frame 0."
            )
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[:, :, 0]
        frame = av.VideoFrame.from_ndarray(array, format=plan.source_format)
        if plan.pix_fmt != plan.source_format:
            wanted = {"dst_colorspace": Colorspace.ITU709, "dst_color_range": ColorRange.MPEG} if plan.is_yuv else {}
            frame = reformatter.reformat(frame, format=plan.pix_fmt, interpolation=_SWS_FLAGS, threads=1, **wanted)
        if plan.is_yuv:
            frame.colorspace, frame.color_range = _BT709, _LIMITED
        if pts_ns is None:
            frame.pts, frame.time_base = number, 1 / rate_hz
        else:
            if number >= len(pts_ns):
                raise ConfigError(
                    f"pts_ns has {len(pts_ns)} times, expected one for each frame: there are more than {number}."
                )
            tick = int(pts_ns[number]) // resolution_ns
            if previous is not None and tick <= previous:
                raise ConfigError(
                    f"pts_ns[{number}]={int(pts_ns[number])} is not at least {resolution_ns} ns after the frame before. Times must rise."
                )
            previous = tick
            frame.pts, frame.time_base = tick * (resolution_ns // 1_000), _MICROSECOND
        yield frame
    if pts_ns is not None and len(pts_ns) != number + 1:
        raise ConfigError(f"pts_ns has {len(pts_ns)} times, expected {number + 1}, one for each frame.")


def _chain(first: NDArray, rest: Iterator[NDArray]) -> Iterator[NDArray]:
    yield first
    for item in rest:
        yield np.asarray(item)


def remux_video(path: str | Path) -> tuple[bytes, str]:
    """Return the packets of a file's best video stream, unchanged, in a container that keeps each one in one piece.

    For videos that `build_video_index` refuses because their container splits or strips packets (MPEG-TS, Matroska with
    header stripping). Audio and other streams are left out.

    Returns:
        The bytes, and 'mp4', or 'mkv' for codecs that mp4 does not hold.

    Raises:
        SourceError: Unreadable, or its packets have no times.
    """
    import av

    buffer = io.BytesIO()
    try:
        with av.open(str(path), "r") as source:
            stream = source.streams.best("video")
            if stream is None:
                raise SourceError(f"{str(path)!r} has no video stream.")
            codec = stream.codec_context.codec.canonical_name
            kind = "mp4" if codec in ("h264", "hevc", "av1", "vp9", "mpeg4", "mpeg2video") else "mkv"
            with av.open(
                buffer, "w", format="matroska" if kind == "mkv" else "mp4", options={"fflags": "+bitexact"}
            ) as output:
                copy: Any = output.add_stream_from_template(stream)
                for packet in source.demux(stream):
                    if packet.dts is None:
                        if packet.size == 0:
                            continue
                        raise SourceError(
                            f"{str(path)!r} has packets without times, which cannot be remuxed. Re-encode it."
                        )
                    packet.stream = copy
                    output.mux(packet)
    except (av.FFmpegError, ValueError, OSError) as err:
        raise SourceError(
            f"{str(path)!r} cannot be remuxed: {err}. Re-encode it, or restore it from its source."
        ) from err
    return buffer.getvalue(), kind
