"""Frames of a video through its packet table: one reused decoder per stream, no container, exact pts."""

# Shapes: T rows asked for, F frames, P packets

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from trajload.decode.context import DecodeContext
from trajload.decode.libav_video import decode_with_loop
from trajload.decode.plan import Blobs, VideoReads, check_rows, plan_video
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
    "decode_with_pyav",
    "fill_repeats",
    "iter_frames",
    "iter_planned",
    "verified_source",
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
    if len(rows) == 0:
        return
    reads = plan if isinstance(plan, VideoReads) else plan_video(track, rows)
    # before any decoder, or any device, sees the bytes
    source = verified_source(track, reads, blobs)
    if context.devices is None:
        _decode_on_cpu(track, reads, source, out, spec=spec, context=context)
    else:
        from trajload.decode.pixels import check_picture

        check_picture(track.index, spec)
        on_cpu = partial(_decode_on_cpu, track, reads, source, spec=spec, context=context)
        context.devices.decode(track, reads, source, out, spec=spec, on_cpu=on_cpu, decoders=context.device_decoder)
    fill_repeats(track, reads, rows, out)


def _decode_on_cpu(
    track: VideoTrack, reads: VideoReads, source: Blobs, out: NDArray, *, spec: StreamSpec, context: DecodeContext
) -> None:
    """Write each frame of `reads` to its row of `out`."""
    if decode_with_loop(track, reads, source, out, spec=spec, context=context):
        context.windows_by_engine["libav"] += 1
    else:
        decode_with_pyav(track, reads, source, out, spec=spec, context=context)


def decode_with_pyav(
    track: VideoTrack, reads: VideoReads, source: Blobs, out: NDArray, *, spec: StreamSpec, context: DecodeContext
) -> None:
    """Write each frame of `reads` to its row of `out`, without the compiled loop."""
    from trajload.decode.pixels import check_picture, write_picture

    check_picture(track.index, spec)
    row_of = reads.first_of_frame
    for frame_number, frame in _iter_on_cpu(track, reads, source, context):
        write_picture(frame, out[row_of[frame_number]], track.index, spec, context)
    context.windows_by_engine["pyav"] += 1


def fill_repeats(track: VideoTrack, reads: VideoReads, rows: Int64Array, out: Any) -> None:
    """Copy frames that `rows` ask for again from where they stand in `out`, an array or a tensor."""
    if len(reads.wanted_W3) < len(rows):
        row_of = reads.first_of_frame
        for i, frame_number in enumerate((rows + track.first_frame).tolist()):
            if i != row_of[frame_number]:
                out[i] = out[row_of[frame_number]]


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
    yield from _iter_on_cpu(track, reads, verified_source(track, reads, blobs), context)


def _iter_on_cpu(
    track: VideoTrack, reads: VideoReads, source: Blobs, context: DecodeContext
) -> Iterator[tuple[int, VideoFrame]]:
    decoder = context.decoder(track.index)
    try:
        yield from iter_planned(track.index, reads, source, decoder)
    except BaseException:
        # also when the consumer stops early: the decoder still holds packets of this window
        context.drop_decoder(track.index)
        raise


def iter_planned(
    index: VideoIndex,
    reads: VideoReads,
    source: Blobs,
    decoder: VideoCodecContext,
    check: Callable[[VideoFrame, VideoIndex, int], None] | None = None,
) -> Iterator[tuple[int, VideoFrame]]:
    """Yield (frame number, frame) for each frame that `reads` want; `check` as for `decode_segment`."""
    wanted = dict(reads.wanted_W3[:, :2].tolist())
    for start, stop, depth in reads.segments_S3.tolist():
        packets = reads.packets_P4[start:stop].tolist()
        yield from decode_segment(index, source, decoder, packets, depth, wanted, check)
    if wanted:
        raise AssertionError("segments cover all wanted frames")


def verified_source(track: VideoTrack, reads: VideoReads, blobs: list[bytes]) -> Blobs:
    source = Blobs(reads, blobs)
    checksum_G = track.index.gop_checksum_G
    for first, last, group, start, stop in reads.groups_G5.tolist():
        if group >= len(checksum_G):
            raise DecodeError(
                f"the packet table of the video in {track.file!r} makes no sense: it has {len(checksum_G)} checksums, "
                f"expected one for group {group}. The index is damaged; run 'trajload verify'."
            )
        # Packets that stand one behind the other are hashed in one go.
        whole = start >= 0
        digest = xxhash.xxh3_64_intdigest(
            source.view(start, stop - start) if whole else _joined(track, source, first, last)
        )
        if digest != int(checksum_G[group]):
            offset_P, size_P = track.index.offset_P[first:last], track.index.size_P[first:last]
            raise ShardCorruptError(
                f"group {group} of the video (packets [{first}, {last})) is damaged: bytes [{int(offset_P.min())}, "
                f"{int((offset_P + size_P).max())}) of {track.file!r} have checksum "
                f"{digest:016x}, expected {int(checksum_G[group]):016x}. "
                "Restore the file from its source; 'trajload verify' lists all damage."
            )
    return source


def _joined(track: VideoTrack, source: Blobs, first: int, last: int) -> bytes:
    """Return the bytes of packets [first, last), which stand apart in the file."""
    offsets, sizes = track.index.offset_P[first:last].tolist(), track.index.size_P[first:last].tolist()
    return b"".join(source.view(a, n) for a, n in zip(offsets, sizes, strict=True))


def decode_segment(
    index: VideoIndex,
    source: Blobs,
    decoder: VideoCodecContext,
    packets: list[list[int]],
    depth: int,
    wanted: dict[int, int],
    check: Callable[[VideoFrame, VideoIndex, int], None] | None = None,
) -> Iterator[tuple[int, VideoFrame]]:
    """Feed packets (offset, size, pts, dts) from a keyframe on, and yield the wanted frames; takes them out of `wanted`.

    `depth` is the number of frames that the decoder must hold back to give them in order; `check` refuses frames that are
    not as they should be, None is `check_frame`.
    """
    import av

    check = check or check_frame
    pts = {packet[2] for packet in packets}
    # Pictures before the keyframe in time are referred to by none after it: without what they refer to they may be flagged.
    first_pts = packets[0][2]
    pending = sum(p in wanted for p in pts)
    # The decoder would learn this only by dropping frames that come late.
    if depth > decoder.reorder_depth:
        decoder.reorder_depth = depth
    # H.264 pictures of nal_ref_idc 0 are never referred to, by the standard, so those not wanted need no decoding:
    # with B frames that is up to half of a long group. Other codecs make no such promise that FFmpeg checks.
    can_skip = index.codec == "h264"
    is_skipping = False
    got = 0
    fed = 0
    try:
        for i in range(len(packets) + 1):
            # Once all wanted frames are there the rest of what was fed comes out, undisplayed: they may refer to it.
            is_fed = i == len(packets) or pending == 0
            if not is_fed:
                offset, size, packet_pts, packet_dts = packets[i]
                if can_skip and (packet_pts not in wanted) != is_skipping:
                    is_skipping = not is_skipping
                    decoder.skip_frame = "NONREF" if is_skipping else "DEFAULT"
                # A packet of libav's own memory: it is padded, as decoders that read ahead need it to be.
                packet = av.Packet(size)
                packet.update(source.view(offset, size))  # type: ignore[arg-type]
                packet.pts, packet.dts = packet_pts, packet_dts
                fed += 1
                frames = decoder.decode(packet)
            else:
                frames = decoder.decode(None)
            for frame in frames:
                got += 1
                number = wanted.pop(frame.pts, None) if frame.pts is not None else None
                if number is None:
                    if frame.is_corrupt and frame.pts is not None and frame.pts >= first_pts:
                        raise _refers_to_damage(index, frame.pts)
                    continue
                check(frame, index, number)
                pending -= 1
                yield number, frame
            if is_fed:
                break
    except av.FFmpegError as err:
        missing = min((number for p, number in wanted.items() if p in pts), default=_number_at(index, packets[0][2]))
        raise DecodeError(
            f"frame {missing} not decodable: got {got} frames, then packet {_number_of(index, packets[fed - 1])} of the video failed: "
            f"FFmpeg says {err.strerror!r}. Run 'trajload verify'; re-encode or drop the episode."
        ) from err
    if is_skipping:
        decoder.skip_frame = "DEFAULT"
    decoder.flush_buffers()
    if pending:
        missing = min(number for p, number in wanted.items() if p in pts)
        raise DecodeError(
            f"frame {missing} not decodable: got {got} frames from {len(packets)} packets, none with pts "
            f"{int(index.pts_P[index.packet_of_frame_F[missing]])}. Run 'trajload verify'; re-encode or drop the episode."
        )


def _refers_to_damage(index: VideoIndex, pts: int) -> DecodeError:
    return DecodeError(
        f"frame {_number_at(index, pts)} is damaged, and frames asked for may refer to it: FFmpeg flags it as corrupt. "
        "Run 'trajload verify'; re-encode or drop the episode."
    )


def _number_at(index: VideoIndex, pts: int) -> int:
    """Return the number of the frame that is shown at `pts`, or of the next one, for messages."""
    return int(np.searchsorted(index.pts_P[index.packet_of_frame_F], pts))


def _number_of(index: VideoIndex, packet: list[int]) -> int:
    """Return the number of a packet in the video, for messages."""
    return int(np.flatnonzero(index.offset_P == packet[0])[0])


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
