"""Frames of a video through its packet table: one reused decoder per stream, no container, exact pts."""

# Shapes: T rows asked for, F frames, P packets

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from trajload.decode.context import DecodeContext
from trajload.decode.plan import Blobs, check_rows, merge_ranges, video_groups, video_segments
from trajload.errors import DecodeError, ShardCorruptError
from trajload.refs import VideoIndex, VideoTrack
from trajload.spec import StreamSpec
from trajload.types import Int64Array, NDArray

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

__all__ = ["decode_frames", "decode_video", "iter_frames"]


def decode_video(
    track: VideoTrack,
    rows: Int64Array,
    blobs: list[bytes],
    out: NDArray,
    *,
    spec: StreamSpec,
    context: DecodeContext,
) -> None:
    """Write the picture of row `rows[i]` to `out[i]` (C, H, W); a row asked for twice is decoded once."""
    from trajload.decode.pixels import check_picture, write_picture

    check_picture(track.index, spec)
    first_of: dict[int, int] = {}
    again: list[tuple[int, int]] = []
    for i, row in enumerate(rows.tolist()):
        if row in first_of:
            again.append((i, first_of[row]))
        else:
            first_of[row] = i
    for frame_number, frame in iter_frames(track, rows, blobs, context):
        write_picture(frame, out[first_of[frame_number - track.first_frame]], track.index, spec, context)
    for i, j in again:
        out[i] = out[j]


def decode_frames(track: VideoTrack, rows: Int64Array, blobs: list[bytes], context: DecodeContext) -> list[VideoFrame]:
    """Return the decoder's own frame for each of `rows`, before any conversion. For tests and inspection."""
    rows = check_rows(track, rows)
    found = dict(iter_frames(track, rows, blobs, context))
    return [found[row + track.first_frame] for row in rows.tolist()]


def iter_frames(
    track: VideoTrack, rows: Int64Array, blobs: list[bytes], context: DecodeContext
) -> Iterator[tuple[int, VideoFrame]]:
    """Yield (frame number in the video, frame) once for each frame that `rows` name, as the decoder gives them.

    Raises:
        ShardCorruptError: A group's bytes differ from its checksum.
        DecodeError: A frame does not come out, or not as the index says.
    """
    if len(rows) == 0:
        return
    index = track.index
    frames_F = np.unique(rows) + track.first_frame
    groups = video_groups(track, frames_F)
    needed = np.concatenate([np.arange(a, b) for a, b in groups])
    source = Blobs(merge_ranges(track.file, index.offset_P[needed], index.size_P[needed]), blobs)
    for start, stop in groups:
        _verify_groups(track, source, start, stop)
    wanted = dict(zip(index.pts_P[index.packet_of_frame_F[frames_F]].tolist(), frames_F.tolist(), strict=True))
    decoder = context.decoder(index)
    try:
        for start, stop in video_segments(track, frames_F):
            yield from _decode_segment(track, source, decoder, start, stop, wanted)
    except BaseException:
        # also when the consumer stops early: the decoder still holds packets of this window
        context.drop_decoder(index)
        raise
    if wanted:
        raise AssertionError("segments cover all wanted frames")


def _verify_groups(track: VideoTrack, source: Blobs, start: int, stop: int) -> None:
    """Check the groups of packets [start, stop) against their checksums."""
    index = track.index
    group = int(np.count_nonzero(index.is_keyframe_P[:start]))
    keys = (np.flatnonzero(index.is_keyframe_P[start:stop]) + start).tolist()
    for first, last in zip(keys, [*keys[1:], stop], strict=True):
        offsets = index.offset_P[first:last].tolist()
        sizes = index.size_P[first:last].tolist()
        digest = xxhash.xxh3_64()
        for offset, size in zip(offsets, sizes, strict=True):
            digest.update(source.view(offset, size))
        if digest.intdigest() != int(index.gop_checksum_G[group]):
            raise ShardCorruptError(
                f"group {group} of the video (packets [{first}, {last})) is damaged: bytes [{min(offsets)}, "
                f"{max(o + s for o, s in zip(offsets, sizes, strict=True))}) of {track.file!r} have checksum "
                f"{digest.intdigest():016x}, expected {int(index.gop_checksum_G[group]):016x}. "
                "Restore the file from its source; 'trajload verify' lists all damage."
            )
        group += 1


def _reorder_depth(pts_P: Int64Array) -> int:
    """Return how many frames a decoder must hold back to give these packets' frames in display order."""
    rank = np.empty(len(pts_P), dtype=np.int64)
    rank[np.argsort(pts_P)] = np.arange(len(pts_P))
    # The greatest number of frames that precede one in decode order and follow it in display order.
    return int((np.arange(len(pts_P)) - rank).max(initial=0))


def _decode_segment(
    track: VideoTrack, source: Blobs, decoder: VideoCodecContext, start: int, stop: int, wanted: dict[int, int]
) -> Iterator[tuple[int, VideoFrame]]:
    """Feed packets [start, stop) from a keyframe on, and yield the wanted frames; takes them out of `wanted`."""
    import av

    index = track.index
    pts = index.pts_P[start:stop].tolist()
    dts = index.dts_P[start:stop].tolist()
    offsets = index.offset_P[start:stop].tolist()
    sizes = index.size_P[start:stop].tolist()
    pending = sum(p in wanted for p in pts)
    if index.codec == "h264":
        # The decoder would learn this only by dropping frames that come late.
        depth = _reorder_depth(index.pts_P[start:stop])
        if depth > decoder.reorder_depth:
            decoder.reorder_depth = depth
    # H.264 pictures of nal_ref_idc 0 are never referred to, by the standard, so those not wanted need no decoding:
    # with B frames that is up to half of a long group. Other codecs make no such promise that FFmpeg checks.
    can_skip = index.codec == "h264"
    is_skipping = False
    got = 0
    fed = 0
    try:
        for i in range(stop - start + 1):
            if i < stop - start:
                if can_skip and (pts[i] not in wanted) != is_skipping:
                    is_skipping = not is_skipping
                    decoder.skip_frame = "NONREF" if is_skipping else "DEFAULT"
                # A packet of libav's own memory: it is padded, as decoders that read ahead need it to be.
                packet = av.Packet(sizes[i])
                packet.update(source.view(offsets[i], sizes[i]))  # type: ignore[arg-type]
                packet.pts, packet.dts = pts[i], dts[i]
                fed += 1
                frames = decoder.decode(packet)
            else:
                frames = decoder.decode(None)
            for frame in frames:
                got += 1
                number = wanted.pop(frame.pts, None) if frame.pts is not None else None
                if number is None:
                    continue
                _check_frame(frame, index, number)
                pending -= 1
                yield number, frame
            if pending == 0:
                break
    except av.FFmpegError as err:
        missing = min(number for p, number in wanted.items() if p in set(pts))
        raise DecodeError(
            f"frame {missing} not decodable: got {got} frames, then packet {start + fed - 1} of the video failed: "
            f"FFmpeg says {err.strerror!r}. Run 'trajload verify'; re-encode or drop the episode."
        ) from err
    if is_skipping:
        decoder.skip_frame = "DEFAULT"
    decoder.flush_buffers()
    if pending:
        missing = min(number for p, number in wanted.items() if p in set(pts))
        raise DecodeError(
            f"frame {missing} not decodable: got {got} frames from {stop - start} packets, none with pts "
            f"{int(index.pts_P[index.packet_of_frame_F[missing]])}. Run 'trajload verify'; re-encode or drop the episode."
        )


def _check_frame(frame: VideoFrame, index: VideoIndex, number: int) -> None:
    """Refuse a frame that is flagged corrupt or looks otherwise than the index says."""
    if frame.is_corrupt:
        raise DecodeError(
            f"frame {number} not decodable: FFmpeg flags it as corrupt. Run 'trajload verify'; re-encode or drop the episode."
        )
    if frame.width != index.width or frame.height != index.height or frame.format.name != index.pix_fmt:
        raise DecodeError(
            f"frame {number} is {frame.width}x{frame.height} {frame.format.name}, expected {index.width}x{index.height} "
            f"{index.pix_fmt}: the video changes its format mid-stream. Re-encode it."
        )
