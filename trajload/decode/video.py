"""Frames of a video through its packet table: one reused decoder per stream, no container, exact pts."""

# Shapes: T rows asked for, F frames, P packets

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from trajload.decode.context import DecodeContext, Engine
from trajload.decode.libav_video import decode_with_loop
from trajload.decode.plan import Blobs, VideoReads, check_rows, plan_video, reorder_depth
from trajload.errors import DecodeError, ShardCorruptError
from trajload.refs import ByteRange, VideoIndex, VideoTrack
from trajload.spec import StreamSpec
from trajload.types import Int64Array, NDArray

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

__all__ = [
    "check_frame",
    "decode_frames",
    "decode_segment",
    "decode_video",
    "fill_repeats",
    "iter_frames",
    "verified_source",
    "wanted_pts",
]


def decode_video(
    track: VideoTrack,
    rows: Int64Array,
    blobs: list[bytes],
    out: NDArray,
    *,
    spec: StreamSpec,
    context: DecodeContext,
    plan: list[ByteRange] | None = None,
) -> None:
    """Write the picture of row `rows[i]` to `out[i]` (C, H, W); a row asked for twice is decoded once.

    The compiled loop of `libav_video` does it where it can; what it cannot, or fails at, PyAV does from the start. Where
    the context has `devices`, they say which windows an NVIDIA decoder takes.
    """
    from trajload.decode.pixels import check_picture

    check_picture(track.index, spec)
    if len(rows) == 0:
        return
    reads = plan if isinstance(plan, VideoReads) else plan_video(track, rows)
    # before any decoder, or any device, sees the bytes
    source = verified_source(track, reads, blobs)
    on_cpu = partial(_decode_on_cpu, track, reads, source, spec=spec, context=context)
    if context.devices is None:
        on_cpu(out)
    else:
        context.devices.decode(track, reads, source, out, spec=spec, on_cpu=on_cpu, decoders=context.device_decoder)
    fill_repeats(track, reads, rows, out)


def _decode_on_cpu(
    track: VideoTrack, reads: VideoReads, source: Blobs, out: NDArray, *, spec: StreamSpec, context: DecodeContext
) -> None:
    """Write each frame of `reads` to its row of `out`."""
    from trajload.decode.pixels import write_picture

    engine: Engine = "libav"
    if not decode_with_loop(track, reads, source, out, spec=spec, context=context):
        engine = "pyav"
        row_of = dict(zip(reads.frames_F.tolist(), reads.first_F.tolist(), strict=True))
        for frame_number, frame in _iter_planned(track, reads, source, context):
            write_picture(frame, out[row_of[frame_number]], track.index, spec, context)
    context.windows_by_engine[engine] += 1


def fill_repeats(track: VideoTrack, reads: VideoReads, rows: Int64Array, out: Any) -> None:
    """Copy frames that `rows` ask for again from where they stand in `out`, an array or a tensor."""
    if len(reads.frames_F) < len(rows):
        first_T = reads.first_F[np.searchsorted(reads.frames_F, rows + track.first_frame)].tolist()
        for i, j in enumerate(first_T):
            if i != j:
                out[i] = out[j]


def decode_frames(track: VideoTrack, rows: Int64Array, blobs: list[bytes], context: DecodeContext) -> list[VideoFrame]:
    """Return PyAV's own frame for each of `rows`, before any conversion. For tests and inspection."""
    rows = check_rows(track, rows)
    found = dict(iter_frames(track, rows, blobs, context))
    return [found[row + track.first_frame] for row in rows.tolist()]


def iter_frames(
    track: VideoTrack, rows: Int64Array, blobs: list[bytes], context: DecodeContext
) -> Iterator[tuple[int, VideoFrame]]:
    """Yield (frame number in the video, frame) once for each frame that `rows` name, as PyAV's decoder gives them.

    Raises:
        ShardCorruptError: A group's bytes differ from its checksum.
        DecodeError: A frame does not come out, or not as the index says.
    """
    if len(rows) == 0:
        return
    reads = plan_video(track, rows)
    yield from _iter_planned(track, reads, verified_source(track, reads, blobs), context)


def _iter_planned(
    track: VideoTrack, reads: VideoReads, source: Blobs, context: DecodeContext
) -> Iterator[tuple[int, VideoFrame]]:
    index = track.index
    wanted = wanted_pts(track, reads)
    decoder = context.decoder(index)
    try:
        for start, stop in reads.segments:
            yield from decode_segment(track, source, decoder, start, stop, wanted)
    except BaseException:
        # also when the consumer stops early: the decoder still holds packets of this window
        context.drop_decoder(index)
        raise
    if wanted:
        raise AssertionError("segments cover all wanted frames")


def verified_source(track: VideoTrack, reads: VideoReads, blobs: list[bytes]) -> Blobs:
    source = Blobs(reads, blobs)
    for start, stop in reads.groups:
        _verify_groups(track, source, start, stop)
    return source


def _verify_groups(track: VideoTrack, source: Blobs, start: int, stop: int) -> None:
    """Check the groups of packets [start, stop) against their checksums."""
    index = track.index
    group = int(np.count_nonzero(index.is_keyframe_P[:start]))
    keys = (np.flatnonzero(index.is_keyframe_P[start:stop]) + start).tolist()
    for first, last in zip(keys, [*keys[1:], stop], strict=True):
        offset_P = index.offset_P[first:last]
        end_P = offset_P + index.size_P[first:last]
        # Packets that stand one behind the other are hashed in one go.
        cuts = np.flatnonzero(offset_P[1:] != end_P[:-1])
        starts, stops = [int(offset_P[0])], [int(end_P[-1])]
        if len(cuts):
            starts += offset_P[cuts + 1].tolist()
            stops = [*end_P[cuts].tolist(), *stops]
        digest = xxhash.xxh3_64()
        for a, b in zip(starts, stops, strict=True):
            digest.update(source.view(a, b - a))
        if digest.intdigest() != int(index.gop_checksum_G[group]):
            raise ShardCorruptError(
                f"group {group} of the video (packets [{first}, {last})) is damaged: bytes [{int(offset_P.min())}, "
                f"{int(end_P.max())}) of {track.file!r} have checksum "
                f"{digest.intdigest():016x}, expected {int(index.gop_checksum_G[group]):016x}. "
                "Restore the file from its source; 'trajload verify' lists all damage."
            )
        group += 1


def wanted_pts(track: VideoTrack, reads: VideoReads) -> dict[int, int]:
    """Return the frame number of each pts that a window needs."""
    index, frames_F = track.index, reads.frames_F
    return dict(zip(index.pts_P[index.packet_of_frame_F[frames_F]].tolist(), frames_F.tolist(), strict=True))


def decode_segment(
    track: VideoTrack,
    source: Blobs,
    decoder: VideoCodecContext,
    start: int,
    stop: int,
    wanted: dict[int, int],
    check: Callable[[VideoFrame, VideoIndex, int], None] | None = None,
) -> Iterator[tuple[int, VideoFrame]]:
    """Feed packets [start, stop) from a keyframe on, and yield the wanted frames; takes them out of `wanted`.

    `check` refuses frames that are not as they should be; None is `check_frame`.
    """
    import av

    index = track.index
    pts = index.pts_P[start:stop].tolist()
    dts = index.dts_P[start:stop].tolist()
    offsets = index.offset_P[start:stop].tolist()
    sizes = index.size_P[start:stop].tolist()
    pending = sum(p in wanted for p in pts)
    if index.codec == "h264":
        # The decoder would learn this only by dropping frames that come late.
        depth = reorder_depth(index.pts_P[start:stop])
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
                (check or check_frame)(frame, index, number)
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


def check_frame(frame: VideoFrame, index: VideoIndex, number: int) -> None:
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
