"""Encoding: deterministic, indexable, colour tagged; depth exact; every bad argument refused by name."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from trajload.errors import ConfigError, SourceError
from trajload.shards.video_encode import VideoEncode, encode_video, remux_video
from trajload.shards.video_index import build_video_index

RATE = Fraction(30)


def colour_frames(count: int = 14, height: int = 64, width: int = 64) -> list[np.ndarray]:
    y, x = np.mgrid[0:height, 0:width]
    return [
        np.stack([(x * 2 + 3 * i) % 256, (y * 3) % 256, np.full_like(x, 40 + 5 * i)], axis=-1).astype(np.uint8)
        for i in range(count)
    ]


def decode_rgb(data: bytes) -> list[np.ndarray]:
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "vp9", "ffv1"])
def test_encoding_twice_gives_the_same_bytes(codec: Any) -> None:
    """One thread and no dates or random numbers: equal frames, equal files."""
    encode = VideoEncode(codec=codec, gop=6)
    a, b = (encode_video(colour_frames(), rate_hz=RATE, encode=encode) for _ in range(2))
    assert a == b


@pytest.mark.parametrize(("codec", "container"), [("h264", "mp4"), ("hevc", "mp4"), ("av1", "mp4"), ("vp9", "mp4")])
def test_encoded_colour_is_tagged_and_comes_back(codec: Any, container: str) -> None:
    """BT.709 limited range is written into the stream, so a decoder that obeys the tag gets the colours back."""
    frames = colour_frames()
    data, kind = encode_video(frames, rate_hz=RATE, encode=VideoEncode(codec=codec, gop=6, crf=8))
    index = build_video_index(data)
    assert (kind, index.color_space, index.color_range) == (container, "bt709", "limited")
    assert index.num_frames == len(frames)
    error = np.abs(np.stack(decode_rgb(data)).astype(int) - np.stack(frames))
    assert error.mean() < 3.0


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "vp9"])
def test_groups_are_closed_and_of_the_length_asked_for(codec: Any) -> None:
    """A keyframe stands every `gop` frames and no frame needs the group before its own."""
    data, _ = encode_video(colour_frames(20), rate_hz=RATE, encode=VideoEncode(codec=codec, gop=5))
    index = build_video_index(data)
    assert index.gop_start_G.tolist() == [0, 5, 10, 15]
    assert index.seek_of_frame_F.tolist() == [5 * (i // 5) for i in range(20)]


@pytest.mark.parametrize("codec", ["h264", "hevc", "ffv1"])
@pytest.mark.parametrize("size", [(64, 64), (33, 47)])
def test_lossless_colour_is_exact(codec: Any, size: tuple[int, int]) -> None:
    """Lossless means every RGB value comes back, at odd sizes too."""
    frames = colour_frames(6, *size)
    data, _ = encode_video(frames, rate_hz=RATE, encode=VideoEncode(codec=codec, lossless=True))
    assert np.array_equal(np.stack(decode_rgb(data)), np.stack(frames))


@pytest.mark.parametrize("shape", [(33, 47), (33, 47, 1)])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint8])
def test_depth_is_stored_bit_for_bit(shape: tuple[int, ...], dtype: Any) -> None:
    """uint16 depth and uint8 masks come back exactly, each frame on its own keyframe."""
    rng = np.random.default_rng(5)
    frames = [rng.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype) for _ in range(4)]
    data, kind = encode_video(frames, rate_hz=Fraction(15), encode=VideoEncode())
    index = build_video_index(data)
    assert (kind, index.codec, index.is_keyframe_P.all()) == ("mkv", "ffv1", True)
    name = "gray16le" if dtype is np.uint16 else "gray"
    with av.open(io.BytesIO(data)) as container:
        got = [frame.to_ndarray(format=name) for frame in container.decode(video=0)]
    assert np.array_equal(np.stack(got), np.stack(frames).reshape(4, 33, 47))


def test_odd_sizes_are_stored_without_pairing_rows() -> None:
    """Odd height or width chooses yuv444p by itself."""
    data, _ = encode_video(colour_frames(3, 63, 64), rate_hz=RATE, encode=VideoEncode())
    assert build_video_index(data).pix_fmt == "yuv444p"


def test_given_times_are_kept() -> None:
    """pts_ns become the frames' presentation times, to the microsecond."""
    times = np.array([0, 33_000, 90_000, 1_000_000, 7_200_001_000], np.int64)
    data, _ = encode_video(colour_frames(5), rate_hz=RATE, encode=VideoEncode(), pts_ns=times)
    index = build_video_index(data)
    got = [round(pts * index.time_base * 1_000_000) for pts in index.pts_P[index.packet_of_frame_F].tolist()]
    assert got == [0, 33, 90, 1000, 7_200_001]


@pytest.mark.parametrize("b_frames", [0, 2])
def test_b_frames_are_used_only_when_asked_for(b_frames: int) -> None:
    """By default packets stand in display order."""
    data, _ = encode_video(colour_frames(), rate_hz=RATE, encode=VideoEncode(b_frames=b_frames))
    index = build_video_index(data)
    assert bool((np.diff(index.pts_P) < 0).any()) == (b_frames > 0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"codec": "h265"}, r"codec='h265'\) is unknown: expected one of 'h264'"),
        ({"gop": 0}, r"gop=0\) is invalid: expected an int in \[1, 10000\]"),
        ({"gop": True}, r"gop=True\) is invalid"),
        ({"crf": 52}, r"crf=52\) is invalid: expected an int in \[0, 51\]"),
        ({"b_frames": 17}, r"b_frames=17\) is invalid"),
        ({"codec": "av1", "lossless": True}, r"codec='av1', lossless=True\) does not exist"),
        ({"pix_fmt": "yuv422p"}, r"pix_fmt='yuv422p'\) is unknown"),
        ({"pix_fmt": "yuv420p", "lossless": True}, r"contradict"),
    ],
)
def test_bad_settings_are_refused_at_birth(kwargs: Any, message: str) -> None:
    """A VideoEncode that exists can be used."""
    with pytest.raises(ConfigError, match=message):
        VideoEncode(**kwargs)


@pytest.mark.parametrize(
    ("frames", "kwargs", "message"),
    [
        ([], {}, r"no frames to encode: got 0"),
        (colour_frames(1), {"rate_hz": Fraction(0)}, r"rate_hz=Fraction\(0, 1\) is invalid"),
        ([np.zeros((8, 8, 4), np.uint8)], {}, r"frames are \(8, 8, 4\) uint8: expected \(H, W, 3\) uint8"),
        ([np.zeros((8, 8), np.float32)], {}, r"one-channel frames are float32: expected uint8 or uint16"),
        (
            [*colour_frames(2), np.zeros((8, 8, 3), np.uint8)],
            {},
            r"frame 2 is \(8, 8, 3\) uint8, expected \(64, 64, 3\)",
        ),
        (colour_frames(3), {"pts_ns": np.array([0, 10])}, r"pts_ns\[1\]=10 is not at least 1000 ns after"),
        (colour_frames(3), {"pts_ns": np.array([0, 10_000])}, r"pts_ns has 2 times, expected one for each frame"),
        (colour_frames(2), {"pts_ns": np.arange(3) * 10_000}, r"pts_ns has 3 times, expected 2"),
        (colour_frames(2, 63, 64), {"encode": VideoEncode(pix_fmt="yuv420p")}, r"63 x 64 cannot be yuv420p"),
        (colour_frames(2, 63, 64), {"encode": VideoEncode(codec="av1")}, r"AV1 here holds yuv420p only"),
        ([np.zeros((8, 8), np.uint16)], {"rate_hz": Fraction(1001)}, r"above 1000 Hz, which Matroska cannot count"),
        ([np.zeros((0, 8, 3), np.uint8)], {}, r"frames are \(0, 8, 3\): expected at least one pixel"),
    ],
)
def test_bad_frames_are_refused_by_name(frames: Any, kwargs: Any, message: str) -> None:
    """What cannot be stored as asked is refused with the values that are wrong."""
    arguments = {"rate_hz": RATE, "encode": VideoEncode(), **kwargs}
    with pytest.raises(ConfigError, match=message):
        encode_video(frames, **arguments)


def test_remux_keeps_every_packet(tmp_path: Path) -> None:
    """A transport stream becomes an mp4 that can be indexed, with the same pictures."""
    data, _ = encode_video(colour_frames(), rate_hz=RATE, encode=VideoEncode(b_frames=2))
    path = tmp_path / "split.ts"
    with av.open(io.BytesIO(data)) as source, av.open(str(path), "w", format="mpegts") as output:
        copy = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = copy
                output.mux(packet)
    with pytest.raises(SourceError, match="not one run of bytes"):
        build_video_index(path)
    again, kind = remux_video(path)
    assert kind == "mp4"
    assert build_video_index(again).num_frames == 14
    assert np.array_equal(np.stack(decode_rgb(again)), np.stack(decode_rgb(data)))


def test_remux_of_something_else_is_refused(tmp_path: Path) -> None:
    """A file that is no video is refused with its path."""
    path = tmp_path / "notes.mp4"
    path.write_text("no video here")
    with pytest.raises(SourceError, match=r"notes\.mp4' cannot be remuxed"):
        remux_video(path)
