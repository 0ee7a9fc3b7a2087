"""Cutting a run of frames out of a video without touching their bits.

A native episode holds one video whose frames are its steps. Where an episode is a stretch of a longer file (LeRobot v3, or a
video longer than its rows), the packets of the stretch are copied into an mp4 of their own. A stretch that begins inside
a group of pictures takes the packets from the keyframe on along: they get times before zero, and the edit list of the mp4
keeps them from being shown. Packets that are decoded within the stretch but shown after it are cut off by the length of
the edit. The result is read back and compared packet by packet, so a container that would change a frame is an error.
See docs/decisions/0032-cutting-shared-videos.md.
"""

# Shapes: P packets, F frames

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from trajload.errors import MissingDependencyError, ShardCorruptError, SourceError
from trajload.refs import VideoIndex
from trajload.shards.video_index import build_video_index
from trajload.types import Int64Array

__all__ = ["cut_video"]

_CURE = "Pass reencode=VideoEncode(...) to encode the frames anew."
_SAME = ("codec", "width", "height", "pix_fmt", "color_space", "color_range", "rotation", "extradata")


def cut_video(path: Path, index: VideoIndex, first_frame: int, num_frames: int) -> bytes:
    """Return an mp4 whose frames are frames [first_frame, first_frame + num_frames) of `path`, packets unchanged.

    Args:
        path: The video file.
        index: Its packet table.
        first_frame: First frame wanted, in display order.
        num_frames: How many, at least 1.

    Raises:
        ShardCorruptError: The file changed since it was indexed.
        SourceError: The mp4 would not hold exactly these packets and frames; the message says what differs.
    """
    frame_F = index.packet_of_frame_F[first_frame : first_frame + num_frames]
    assert num_frames >= 1 and len(frame_F) == num_frames
    start = int(index.seek_of_frame_F[first_frame : first_frame + num_frames].min())
    stop = int(frame_F.max()) + 1
    shift = int(index.pts_P[frame_F[0]])
    _check_groups(path, index, start, stop)
    data = _mux(path, index, start, stop, shift)
    shown_after = np.setdiff1d(np.arange(start, stop), frame_F)
    shown_after = shown_after[index.pts_P[shown_after] > index.pts_P[frame_F[-1]]]
    if shown_after.size:
        data = _end_edit(data, int(index.pts_P[shown_after].min()) - shift, index)
    _compare(path, index, data, start, stop, frame_F)
    return data


def _check_groups(path: Path, index: VideoIndex, start: int, stop: int) -> None:
    """Raise unless the groups of pictures around [start, stop) still have the bytes they were indexed with."""
    edge = np.append(index.gop_start_G, len(index.size_P))
    first, last = np.searchsorted(edge, [start, stop - 1], side="right") - 1
    with path.open("rb") as file:
        for group in range(int(first), int(last) + 1):
            digest = xxhash.xxh3_64()
            for number in range(int(edge[group]), int(edge[group + 1])):
                digest.update(_read(file, index, number))
            if digest.intdigest() != int(index.gop_checksum_G[group]):
                raise ShardCorruptError(
                    f"packets [{edge[group]}, {edge[group + 1]}) of {path.name!r} differ from what was indexed: the file changed. "
                    "Open the dataset again, or restore the file."
                )


def _mux(path: Path, index: VideoIndex, start: int, stop: int, shift: int) -> bytes:
    try:
        import av
    except ImportError as err:
        raise MissingDependencyError("video needs PyAV; run: pip install av") from err
    out = io.BytesIO()
    try:
        # Only the header is read through the container: the index says where the packets stand.
        with av.open(str(path)) as source, path.open("rb") as file:
            template: Any = source.streams.best("video") or source.streams.video[0]
            options = {
                "fflags": "+bitexact",
                "avoid_negative_ts": "disabled",
                "movie_timescale": str(index.time_base.denominator),
            }
            with av.open(out, "w", format="mp4", options=options) as target:
                stream: Any = target.add_stream_from_template(template, opaque=True)
                stream.time_base = index.time_base
                for number in range(start, stop):
                    packet: Any = av.Packet(_read(file, index, number))
                    packet.pts = int(index.pts_P[number]) - shift
                    packet.dts = int(index.dts_P[number]) - shift
                    packet.duration = _duration(index, number)
                    packet.time_base = index.time_base
                    packet.is_keyframe = bool(index.is_keyframe_P[number])
                    packet.stream = stream
                    target.mux(packet)
    except (av.FFmpegError, ValueError, OSError) as err:
        text = getattr(err, "strerror", None) or str(err)
        raise SourceError(
            f"packets [{start}, {stop}) cannot be put into an mp4: FFmpeg says {text!r}. {_CURE}"
        ) from err
    return out.getvalue()


def _read(file: BinaryIO, index: VideoIndex, number: int) -> bytes:
    file.seek(int(index.offset_P[number]))
    return file.read(int(index.size_P[number]))


def _duration(index: VideoIndex, number: int) -> int:
    """Return the ticks to the next packet; the muxer only uses those of the last one."""
    near = index.dts_P[max(0, number - 1) : number + 2]
    return max(1, int(near[-1] - near[-2])) if len(near) > 1 else 1


def _end_edit(data: bytes, duration: int, index: VideoIndex) -> bytes:
    """Return the mp4 with its last edit ending at `duration` ticks, so that later frames are not shown."""
    at = data.find(b"elst", data.rfind(b"moov"))
    if at < 0:
        raise SourceError(
            f"the stretch ends inside a group of pictures, and its mp4 has no edit list to end there. {_CURE}"
        )
    version, count = data[at + 4], struct.unpack_from(">I", data, at + 8)[0]
    size, code = (20, ">Q") if version == 1 else (12, ">I")
    last = at + 12 + (count - 1) * size
    # The muxer was given the track's own clock for the movie, so that the end needs no rounding.
    out = bytearray(data)
    struct.pack_into(code, out, last, duration * index.time_base.numerator)
    return bytes(out)


def _compare(path: Path, index: VideoIndex, data: bytes, start: int, stop: int, frame_F: Int64Array) -> None:
    """Raise unless `data` holds the packets [start, stop) of `path`, byte for byte, and shows the frames wanted."""
    cut = build_video_index(data)
    for name in _SAME:
        if getattr(cut, name) != getattr(index, name):
            raise SourceError(
                f"cutting would change the video's {name}: got {getattr(cut, name)!r}, expected {getattr(index, name)!r}. {_CURE}"
            )
    if len(cut.size_P) != stop - start or cut.num_frames != len(frame_F):
        raise SourceError(
            f"the cut video has {len(cut.size_P)} packets and {cut.num_frames} frames: expected {stop - start} and "
            f"{len(frame_F)}. {_CURE}"
        )
    with path.open("rb") as file:
        for k in range(stop - start):
            got = data[int(cut.offset_P[k]) : int(cut.offset_P[k] + cut.size_P[k])]
            if got != _read(file, index, start + k):
                raise SourceError(f"packet {start + k} would be rewritten by the mp4 container. {_CURE}")
    got_F = (cut.pts_P[cut.packet_of_frame_F] - cut.pts_P[cut.packet_of_frame_F[0]]) * cut.time_base
    want_F = (index.pts_P[frame_F] - index.pts_P[frame_F[0]]) * index.time_base
    if (abs(got_F - want_F) > index.time_base).any():
        raise SourceError(f"the cut video's frame times differ from the original's. {_CURE}")
