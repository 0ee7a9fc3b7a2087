"""Building the packet table of a video: one pass over its packets, one decoded frame, every byte range checked.

What the table promises (see `trajload.refs.VideoIndex`) is exactly what a decoder needs to get any frame without the
container. A video for which the promise cannot be kept is refused, with the reason and the cure; nothing is guessed.
"""

# Shapes: P packets in decode order, F frames in display order, G groups of pictures

from __future__ import annotations

import io
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from trajload.errors import DecodeError, MissingDependencyError, SourceError
from trajload.refs import VideoIndex
from trajload.shards.video_codec import (
    COLOR_RANGES,
    COLOR_SPACES,
    SUPPORTED_CODECS,
    clockwise_rotation,
    decodable_pts,
    derive_pts,
    is_hidden,
    is_random_access,
)
from trajload.types import BoolArray, Int64Array

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

__all__ = ["build_video_index"]

# A packet's payload stands at `pos`, or behind a short block header (Matroska: 4 bytes and more with lacing, AVI: 8).
_MAX_BLOCK_HEADER = 64
_LFS = b"version https://git-lfs"
# Containers that store when a picture is shown. For others (AVI) libavformat fills in times of its own, which are wrong
# for some streams with B pictures.
_TIMED_FORMATS = {"mov", "mp4", "matroska", "webm", "flv", "ivf", "nut", "asf"}
_REENCODE = "Re-encode it, or convert the dataset with 'trajload convert'."
_REMUX = "Remux it (ffmpeg -i IN -c copy OUT.mp4), or convert the dataset with 'trajload convert'."


@dataclass
class _Packets:
    """What one pass over the container saw."""

    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    pts: list[int | None] = field(default_factory=list)
    dts: list[int | None] = field(default_factory=list)
    is_keyframe: list[bool] = field(default_factory=list)
    is_discard: list[bool] = field(default_factory=list)


def build_video_index(
    source: str | Path | bytes, *, base_offset: int = 0, stream_index: int | None = None
) -> VideoIndex:
    """Return the packet table of one video stream.

    Args:
        source: Path of the video file, or its bytes.
        base_offset: Added to every packet offset: where the video begins inside a larger file.
        stream_index: Container index of the stream; None takes the one FFmpeg holds best (not always the first).

    Raises:
        SourceError: The container cannot be served packet by packet; the message says why and what to do.
        DecodeError: No picture comes out of it.
    """
    try:
        import av
    except ImportError as err:
        raise MissingDependencyError("video needs PyAV; run: pip install av") from err

    with _open_bytes(source) as data:
        _refuse_non_video(data)
        try:
            container = av.open(io.BytesIO(data) if isinstance(data, bytes) else str(source), mode="r")
        except (av.FFmpegError, ValueError, OSError) as err:
            raise SourceError(
                f"not a readable video: FFmpeg says {_libav_text(err)} about {len(data)} bytes that begin with {bytes(data[:12])!r}. "
                "Restore the file from its source."
            ) from err
        with container:
            stream = _choose_stream(container, stream_index)
            codec = _supported_codec(stream)
            extradata = bytes(stream.codec_context.extradata or b"")
            packets, first = _demux(container, stream, data, codec, extradata)
            _refuse_missing_packets(source, data, container, stream, packets)
            time_base = Fraction(stream.time_base or Fraction(1, 1))
            has_times = bool(_TIMED_FORMATS & set(container.format.name.split(",")))
        pts_P = _presentation_times(codec, packets, data, has_times)
        frames = _order_frames(pts_P, packets)
        index = VideoIndex(
            codec=codec,
            extradata=extradata,
            time_base=time_base,
            width=first.width,
            height=first.height,
            pix_fmt=first.format.name,
            color_space=COLOR_SPACES.get(int(first.colorspace), "unspecified"),
            color_range=COLOR_RANGES.get(int(first.color_range), "unspecified"),
            rotation=clockwise_rotation(first),
            offset_P=np.array(packets.offset, dtype=np.int64) + base_offset,
            size_P=np.array(packets.size, dtype=np.int64),
            pts_P=pts_P,
            dts_P=np.array([p if d is None else d for d, p in zip(packets.dts, pts_P.tolist(), strict=True)], np.int64),
            is_keyframe_P=np.array(packets.is_keyframe, dtype=np.bool_),
            is_discard_P=np.array(packets.is_discard, dtype=np.bool_),
            gop_checksum_G=_group_checksums(packets, data),
            packet_of_frame_F=frames,
            seek_of_frame_F=_seek_packets(frames, pts_P, np.array(packets.is_keyframe, dtype=np.bool_)),
        )
        return _without_orphans(index, packets, data)


def _without_orphans(index: VideoIndex, packets: _Packets, data: bytes | mmap.mmap) -> VideoIndex:
    """Discard frames shown before the first keyframe that no decoder gives: the group they refer to was cut off."""
    leads = np.flatnonzero((index.pts_P < index.pts_P[0]) & ~index.is_discard_P)
    if leads.size == 0:
        return index
    stop = int(leads[-1]) + 1
    payloads = [data[o : o + s] for o, s in zip(packets.offset[:stop], packets.size[:stop], strict=True)]
    orphans = leads[~np.isin(index.pts_P[leads], decodable_pts(index, payloads))]
    for packet in orphans.tolist():
        packets.is_discard[packet] = True
    frames = _order_frames(index.pts_P, packets)
    return replace(
        index,
        is_discard_P=np.array(packets.is_discard, dtype=np.bool_),
        packet_of_frame_F=frames,
        seek_of_frame_F=_seek_packets(frames, index.pts_P, index.is_keyframe_P),
    )


@contextmanager
def _open_bytes(source: str | Path | bytes) -> Iterator[bytes | mmap.mmap]:
    """Give the file's bytes, mapped rather than read where they stand on disk."""
    if isinstance(source, bytes):
        yield source
        return
    try:
        with open(source, "rb") as file:
            if file.seek(0, io.SEEK_END) == 0:
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                yield mapped
    except OSError as err:
        raise SourceError(f"video {str(source)!r} cannot be opened: {err.strerror or err}.") from err


def _refuse_non_video(data: bytes | mmap.mmap) -> None:
    if len(data) == 0:
        raise SourceError("the video is empty: got 0 bytes. Restore the file from its source.")
    if data[: len(_LFS)] == _LFS:
        raise SourceError(
            f"this is a Git LFS pointer of {len(data)} bytes, not the video itself. Run 'git lfs pull' in the repository it came from."
        )


def _libav_text(err: BaseException) -> str:
    return repr(getattr(err, "strerror", None) or str(err))


def _choose_stream(container: Any, stream_index: int | None) -> VideoStream:
    """Return the stream asked for, or the one FFmpeg prefers."""
    videos = list(container.streams.video)
    have = ", ".join(f"{s.index} ({s.type})" for s in container.streams) or "none"
    if not videos:
        raise SourceError(f"the file has no video stream: its streams are {have}. Name a video file.")
    if stream_index is None:
        best: VideoStream = container.streams.best("video") or videos[0]
        return best
    for stream in videos:
        if stream.index == stream_index:
            return stream  # type: ignore[no-any-return]
    raise SourceError(f"stream {stream_index} is not a video stream: the file's streams are {have}.")


def _supported_codec(stream: VideoStream) -> str:
    """Return the codec's family name, or refuse it."""
    supported = ", ".join(map(repr, SUPPORTED_CODECS))
    if stream.codec_context is None:
        raise SourceError(
            f"stream {stream.index} has a codec that FFmpeg here cannot decode: expected one of {supported}. {_REENCODE}"
        )
    codec = stream.codec_context.codec.canonical_name
    if codec not in SUPPORTED_CODECS:
        raise SourceError(f"codec {codec!r} is not supported: expected one of {supported}. {_REENCODE}")
    try:
        tag = stream.codec_context.codec_tag.rstrip("\x00")
    except UnicodeDecodeError as err:
        tag = repr(err.object)
    # Without an encoder's signature FFmpeg takes its workarounds for old encoders from the container's tag, which a
    # packet does not carry: pictures would differ slightly.
    is_signed = b"\x00\x00\x01\xb2" in (stream.codec_context.extradata or b"")
    if codec == "mpeg4" and tag.lower() not in ("mp4v", "fmp4", "") and not is_signed:
        raise SourceError(
            f"MPEG-4 part 2 video of tag {tag!r} without an encoder signature decodes by guesswork. {_REENCODE}"
        )
    return codec


def _demux(
    container: Any, stream: VideoStream, data: bytes | mmap.mmap, codec: str, extradata: bytes
) -> tuple[_Packets, VideoFrame]:
    """Return all packets of the stream, each found in the file's bytes, and the first picture."""
    import av

    out = _Packets()
    first: VideoFrame | None = None
    context = stream.codec_context
    context.thread_count = 1
    failure: Exception | None = None
    try:
        for packet in container.demux(stream):
            if packet.size == 0:
                if packet.dts is not None or packet.pts is not None:
                    raise SourceError(
                        f"packet {len(out.size)} is empty: the recorder dropped a picture here. {_REENCODE}"
                    )
                continue  # the demuxer's end mark
            number = len(out.size)
            _check_packet(packet, number, stream)
            payload = bytes(packet)
            out.offset.append(_locate(data, packet.pos, payload, number))
            out.size.append(len(payload))
            out.pts.append(packet.pts)
            out.dts.append(packet.dts)
            out.is_keyframe.append(packet.is_keyframe and is_random_access(codec, extradata, payload))
            out.is_discard.append(packet.is_discard or is_hidden(codec, payload))
            if first is None and failure is None:
                try:
                    frames = context.decode(packet)
                except av.FFmpegError as err:
                    failure = err
                else:
                    first = frames[0] if frames else None
        if first is None and failure is None and out.size:
            frames = context.decode(None)
            first = frames[0] if frames else None
    except av.FFmpegError as err:
        if not out.size or failure is not None:
            raise SourceError(
                f"reading packets failed after {len(out.size)}: FFmpeg says {_libav_text(err)}. Restore the file from its source."
            ) from err
        failure = err
    if not out.size:
        raise SourceError(
            f"the video has no packets, though its header promises {stream.frames} frames: it is truncated. Restore the file from its source."
        )
    if first is None:
        reason = f": FFmpeg says {_libav_text(failure)}" if failure else ""
        promise = f" of {stream.frames} promised" if stream.frames else ""
        raise DecodeError(
            f"no picture comes out of the video: got 0 frames from {len(out.size)} packets{promise}{reason}. Restore the file from its source."
        )
    return out, first


def _check_packet(packet: Any, number: int, stream: VideoStream) -> None:
    """Raise SourceError for a packet that is cut off, or that needs other settings than those before it."""
    if packet.is_corrupt:
        promise = f"; the header promises {stream.frames} frames" if stream.frames else ""
        raise SourceError(
            f"packet {number} is truncated: the file ends after {number} whole packets{promise}. Restore it from its source."
        )
    for side in packet.iter_sidedata():
        if side.data_type in ("new_extradata", "palette", "param_change"):
            raise SourceError(
                f"packet {number} changes the codec's settings mid-stream ({side.data_type}). {_REENCODE}"
            )


def _locate(data: bytes | mmap.mmap, pos: int | None, payload: bytes, number: int) -> int:
    """Return where the packet's bytes stand in the file."""
    if pos is not None:
        if data[pos : pos + len(payload)] == payload:
            return pos
        at = data.find(payload, pos, pos + len(payload) + _MAX_BLOCK_HEADER)
        if at >= 0:
            return at
    raise SourceError(
        f"packet {number} is not one run of bytes in the file (position {pos}, {len(payload)} bytes): the container splits, "
        f"strips or rewrites packets. {_REMUX}"
    )


def _refuse_missing_packets(
    source: str | Path | bytes, data: bytes | mmap.mmap, container: Any, stream: VideoStream, packets: _Packets
) -> None:
    """Refuse a file that holds fewer packets than its header promises, unless an edit list left them out."""
    import av

    got, promised = len(packets.size), stream.frames
    if promised <= got:
        return
    if "mov" in container.format.name:
        whole = io.BytesIO(data) if isinstance(data, bytes) else str(source)
        try:
            with av.open(whole, mode="r", options={"ignore_editlist": "1"}) as again:
                total = sum(1 for p in again.demux(again.streams[stream.index]) if p.size and not p.is_corrupt)
        except av.FFmpegError:
            total = 0
        if total >= promised:
            return
    raise SourceError(
        f"the header promises {promised} frames, but only {got} packets exist in {len(data)} bytes: the file is truncated. "
        "Restore it from its source."
    )


def _presentation_times(codec: str, packets: _Packets, data: bytes | mmap.mmap, has_times: bool) -> Int64Array:
    """Return pts (P,): the container's, or the order of storage where the codec shows pictures in that order."""
    known = [p is not None for p in packets.pts]
    if has_times and all(known):
        return np.array(packets.pts, dtype=np.int64)
    if has_times and any(known):
        raise SourceError(
            f"packet {known.index(False)} of {len(known)} has no presentation time, though others have. {_REMUX}"
        )
    if any(d is None for d in packets.dts):
        raise SourceError(
            f"the video has no timestamps at all ({len(known)} packets): a raw stream cannot say when its frames are. "
            "Put it into a container with its frame rate (ffmpeg -framerate FPS -i IN -c copy OUT.mp4)."
        )
    derive_pts(codec, [data[o : o + s] for o, s in zip(packets.offset, packets.size, strict=True)])
    return np.array(packets.pts if all(known) else packets.dts, dtype=np.int64)


def _order_frames(pts_P: Int64Array, packets: _Packets) -> Int64Array:
    """Return the packet of each frame in display order."""
    if not packets.is_keyframe[0]:
        raise SourceError(
            f"the first packet (pts {pts_P[0]}) is not a keyframe a decoder can start at: the recording was cut mid-group. "
            f"{_REENCODE}"
        )
    order = np.argsort(pts_P, kind="stable")
    same = np.flatnonzero(np.diff(pts_P[order]) == 0)
    if same.size:
        a, b = sorted((int(order[same[0]]), int(order[same[0] + 1])))
        raise SourceError(
            f"packets {a} and {b} have the same presentation time {pts_P[a]}, so frames cannot be told apart. {_REENCODE}"
        )
    shown = ~np.array(packets.is_discard, dtype=np.bool_)
    frames = order[shown[order]].astype(np.int64)
    if frames.size == 0:
        raise SourceError(f"the edit list discards all {len(pts_P)} packets of the video. {_REMUX}")
    return frames


def _seek_packets(frame_F: Int64Array, pts_P: Int64Array, is_keyframe_P: BoolArray) -> Int64Array:
    """Return the keyframe to start at for each frame: the last one before it in decode order and not after it in time.

    A frame shown before the keyframe it follows in the file (open GOP) refers to the group before that keyframe.
    """
    keys = np.flatnonzero(is_keyframe_P)
    nearest = np.searchsorted(keys, frame_F, side="right") - 1
    leads = pts_P[frame_F] < pts_P[keys[nearest]]
    while True:
        back = leads & (nearest > 0)
        if not back.any():
            break
        nearest = nearest - back
        leads = back & (pts_P[frame_F] < pts_P[keys[nearest]])
    return keys[nearest].astype(np.int64)


def _group_checksums(packets: _Packets, data: bytes | mmap.mmap) -> np.ndarray:
    """Return xxh3_64 of each group of pictures, over its packets joined in decode order."""
    out: list[int] = []
    digest = xxhash.xxh3_64()
    for i, (offset, size) in enumerate(zip(packets.offset, packets.size, strict=True)):
        if packets.is_keyframe[i] and i:
            out.append(digest.intdigest())
            digest.reset()
        digest.update(data[offset : offset + size])
    out.append(digest.intdigest())
    return np.array(out, dtype=np.uint64)
