"""Damage is found and named: flipped bits, missing bytes, broken pictures, tables that promise too much."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xxhash

from trajload.decode import DecodeContext, decode_rows, plan_reads, row_shape
from trajload.decode.video import decode_frames
from trajload.errors import ConfigError, DecodeError, ShardCorruptError, WindowError
from trajload.refs import VideoTrack
from trajload.spec import Image
from trajload.types import Modality


def resign(track: VideoTrack, data: bytes) -> VideoTrack:
    """Return the track with group checksums of `data`, so that damage gets past them and reaches the decoder."""
    index = track.index
    bounds = [*index.gop_start_G.tolist(), len(index.offset_P)]
    sums = []
    for a, b in itertools.pairwise(bounds):
        packets = zip(index.offset_P[a:b].tolist(), index.size_P[a:b].tolist(), strict=True)
        sums.append(xxhash.xxh3_64_intdigest(b"".join(data[o : o + s] for o, s in packets)))
    return replace(track, index=replace(index, gop_checksum_G=np.array(sums, np.uint64)))


def test_flipped_bit_is_found_before_decoding_and_located(video: Any, tools: Any, context: DecodeContext) -> None:
    """One flipped bit in a group is a corrupt shard, with the group, its packets and its bytes in the message."""
    data, track = video
    index = track.index
    place = int(index.offset_P[14] + 5)
    bad = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    last = int(index.offset_P[23] + index.size_P[23])
    message = (
        rf"group 1 of the video \(packets \[12, 24\)\) is damaged: bytes \[{index.offset_P[12]}, {last}\) of 'video'"
    )
    with pytest.raises(ShardCorruptError, match=message):
        tools.get_rows(track, bad, [15], tools.video_spec(track), context=context)


def test_damage_elsewhere_does_not_matter(video: Any, tools: Any, context: DecodeContext) -> None:
    """A damaged group leaves the others readable."""
    data, track = video
    place = int(track.index.offset_P[14] + 5)
    bad = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    spec = tools.video_spec(track)
    assert np.array_equal(
        tools.get_rows(track, bad, [3, 30], spec, context=context),
        tools.get_rows(track, data, [3, 30], spec, context=context),
    )


def test_truncated_file_is_named(video: Any, tools: Any, context: DecodeContext) -> None:
    """A blob shorter than planned is truncation, whoever read it."""
    data, track = video
    rows = np.array([30])
    (where,) = plan_reads(track, rows)
    blob = data[where.offset : where.offset + where.size - 7]
    shape, dtype = row_shape(tools.video_spec(track), Image())
    with pytest.raises(ShardCorruptError, match=rf"truncated: got {where.size - 7} bytes, expected {where.size}"):
        decode_rows(
            track,
            rows,
            [blob],
            np.empty((1, *shape), dtype),
            spec=tools.video_spec(track),
            request=Image(),
            store=tools.MemoryStore(data),
            context=context,
        )


def test_too_few_blobs_are_a_callers_error(video: Any) -> None:
    """The blobs must be those of plan_reads."""
    _, track = video
    with pytest.raises(ConfigError, match="got 0 blobs, expected 1"):
        decode_frames(track, np.array([3]), [], DecodeContext())


def test_broken_picture_raises_and_the_context_stays_usable(video: Any, tools: Any, context: DecodeContext) -> None:
    """Frames before a broken packet are right, the frame of the packet raises, and later windows are right again."""
    data, track = video
    index = track.index
    packet = 12
    start, size = int(index.offset_P[packet]), int(index.size_P[packet])
    bad = data[:start] + b"\x00" * size + data[start + size :]
    signed = resign(track, bad)
    spec = tools.video_spec(track)
    good = tools.get_rows(track, data, [2, 30], spec, context=context)
    assert np.array_equal(tools.get_rows(signed, bad, [2], spec, context=context)[0], good[0])
    with pytest.raises(DecodeError, match=r"frame \d+ not decodable: got \d+ frames"):
        tools.get_rows(signed, bad, [13, 14], spec, context=context)
    assert np.array_equal(tools.get_rows(signed, bad, [2, 30], spec, context=context), good)


def test_missing_picture_is_named_with_its_pts(video: Any, tools: Any) -> None:
    """A pts that no frame has is not replaced by a neighbour."""
    data, track = video
    index = track.index
    packet = int(index.packet_of_frame_F[9])
    pts = index.pts_P.copy()
    pts[packet] += 1

    class Lying(DecodeContext):
        """Hands out a decoder whose frames are one tick off."""

        def decoder(self, index: Any) -> Any:
            inner = super().decoder(index)

            class Late:
                reorder_depth = 2

                def decode(self, packet: Any) -> Any:
                    frames = inner.decode(packet)
                    for frame in frames:
                        frame.pts += 1
                    return frames

                def flush_buffers(self) -> None:
                    inner.flush_buffers()

            return Late()

    with pytest.raises(
        DecodeError,
        match=rf"frame 9 not decodable: got \d+ frames from \d+ packets, none with pts {index.pts_P[packet]}",
    ):
        decode_frames(
            track,
            np.array([9]),
            [data[r.offset : r.offset + r.size] for r in plan_reads(track, np.array([9]))],
            Lying(),
        )


@pytest.mark.parametrize("row", [-1, 36, 1000])
def test_row_outside_the_track_is_a_window_error(row: int, video: Any, tools: Any) -> None:
    """Rows are never clamped or wrapped."""
    data, track = video
    with pytest.raises(WindowError, match=rf"row {row} does not exist: the stream has 36 rows"):
        tools.get_rows(track, data, [row], tools.video_spec(track))


def test_track_longer_than_its_video_is_named(video: Any, tools: Any, context: DecodeContext) -> None:
    """Metadata that promise more frames than the video has are found on reading the first of them."""
    data, track = video
    longer = replace(track, num_rows=50)
    with pytest.raises(
        DecodeError, match=r"frame 40 not decodable: the video has 36 frames, but its track promises frames \[0, 50\)"
    ):
        tools.get_rows(longer, data, [40], tools.video_spec(track), context=context)


def test_frame_of_another_size_is_named(video: Any, tools: Any) -> None:
    """A stream that changes its size mid-way gives an error, not a stretched or cropped picture."""
    data, track = video
    wrong = replace(track, index=replace(track.index, width=32))
    with pytest.raises(DecodeError, match=r"frame 3 is 64x48 yuv420p, expected 32x48 yuv420p"):
        decode_frames(
            wrong,
            np.array([3]),
            [data[r.offset : r.offset + r.size] for r in plan_reads(track, np.array([3]))],
            DecodeContext(),
        )


def test_spec_of_another_size_is_named(video: Any, tools: Any, context: DecodeContext) -> None:
    """The declared shape must be the shown one."""
    data, track = video
    spec = replace(tools.video_spec(track), shape=(48, 60, 3))
    with pytest.raises(DecodeError, match=r"shows 48 x 64 pictures, expected 48 x 60"):
        tools.get_rows(track, data, [0], spec, context=context)


def test_colour_video_is_no_depth(video: Any, tools: Any, context: DecodeContext) -> None:
    """Depth is taken only from formats that hold it exactly."""
    data, track = video
    with pytest.raises(
        DecodeError, match=r"has pixel format 'yuv420p', which does not hold 1 channel\(s\) of uint16 exactly"
    ):
        tools.get_rows(track, data, [0], tools.video_spec(track, Modality.DEPTH, "uint16"), context=context)


def test_wrong_output_array_is_named(video: Any, tools: Any) -> None:
    """The output must be laid out as row_shape says."""
    data, track = video
    rows = np.array([0])
    with pytest.raises(
        ConfigError, match=r"out is \(1, 48, 64, 3\) uint8: expected C-contiguous \(1, 3, 48, 64\) uint8"
    ):
        decode_rows(
            track,
            rows,
            [],
            np.empty((1, 48, 64, 3), np.uint8),
            spec=tools.video_spec(track),
            request=Image(),
            store=tools.MemoryStore(data),
            context=DecodeContext(),
        )


def test_frames_that_may_refer_to_a_damaged_one_are_refused(tools: Any, context: DecodeContext) -> None:
    """A picture damaged before its checksum was taken: FFmpeg mends it with what stands near, which differs from one way of
    decoding to another, and flags that picture alone. Frames of its group that are decoded after it are refused with it."""
    data = tools.make_video(
        tools.Recipe("h264", "libx264", gop=12, options=(("bf", "3"), ("x264-params", "scenecut=0:b-adapt=0")))
    )
    whole = tools.whole_track(data)
    index, spec = whole.index, tools.video_spec(whole)
    victim = int(np.flatnonzero(index.is_keyframe_P)[1]) + 1  # what all that follows in its group refers to
    begin, size = int(index.offset_P[victim]), int(index.size_P[victim])
    bad = data[: begin + size // 2] + bytes(size - size // 2) + data[begin + size :]
    track, number = resign(whole, bad), int(np.flatnonzero(index.packet_of_frame_F == victim)[0])
    for row in (number - 1, number + 1, number + 5):
        with pytest.raises(DecodeError, match=f"frame {number} is damaged, and frames asked for may refer to it"):
            tools.get_rows(track, bad, [row], spec, context=context)
    with pytest.raises(DecodeError, match=f"frame {number} not decodable: FFmpeg flags it as corrupt"):
        tools.get_rows(track, bad, [number], spec, context=context)
    assert (number, index.num_frames) == (16, 36)
    for row in (3, 11, 12, 24, 30):
        got = tools.get_rows(track, bad, [row], spec, context=context)
        assert np.array_equal(got, tools.get_rows(whole, data, [row], spec))
