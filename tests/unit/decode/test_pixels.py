"""Pictures look as FFmpeg shows them: every format, matrix and range against swscale through PyAV."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest

from trajload.decode import DecodeContext, plan_reads
from trajload.decode.pixels import kernel_of, write_picture
from trajload.decode.video import decode_frames
from trajload.refs import VideoIndex
from trajload.shards.video_codec import COLOR_RANGE_NUMBERS, COLOR_SPACE_NUMBERS
from trajload.spec import Image, StreamSpec
from trajload.types import Modality

FORMATS = [
    "yuv420p",
    "yuvj420p",
    "yuv422p",
    "yuv444p",
    "yuvj444p",
    "yuv420p10le",
    "yuv444p10le",
    "nv12",
    "gray",
    "gbrp",
    "bgr0",
    "yuva420p",
]


def natural(height: int, width: int) -> np.ndarray:
    """Return a picture like a camera's: smooth colour, edges, a little noise."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    rng = np.random.default_rng(2)
    base = np.stack([np.sin(5 * x + 2 * y), np.cos(4 * y - x), np.sin(3 * (x + y))], axis=-1) * 110 + 128
    base[height // 3 : height // 2, width // 4 : width // 2] = (230, 30, 60)
    return np.clip(base + rng.normal(0, 3, base.shape), 0, 255).astype(np.uint8)


def frame_of(pix_fmt: str, color_space: str, color_range: str, height: int, width: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(natural(height, width), format="rgb24").reformat(format=pix_fmt)
    frame.colorspace = COLOR_SPACE_NUMBERS[color_space]
    frame.color_range = COLOR_RANGE_NUMBERS[color_range]
    return frame


def index_of(
    pix_fmt: str, color_space: str, color_range: str, height: int, width: int, rotation: int = 0
) -> VideoIndex:
    none = np.zeros(0, np.int64)
    empty = {name: none for name in VideoIndex.__slots__ if name[-2:] in ("_P", "_F", "_G")}
    return VideoIndex(
        codec="h264", extradata=b"", time_base=None, width=width, height=height, pix_fmt=pix_fmt,  # type: ignore[arg-type]
        color_space=color_space, color_range=color_range, rotation=rotation, **empty,
    )  # fmt: skip


def converted(frame: av.VideoFrame, index: VideoIndex, size: tuple[int, int] | None = None) -> np.ndarray:
    shown = (index.width, index.height) if index.rotation in (90, 270) else (index.height, index.width)
    spec = StreamSpec(name="c", modality=Modality.RGB, encoding="mp4", shape=(*shown, 3), dtype="uint8")
    out = np.full((3, *(size or shown)), 7, np.uint8)
    write_picture(frame, out, index, spec, DecodeContext())
    return out


def assert_like_swscale(got: np.ndarray, frame: av.VideoFrame) -> None:
    wanted = frame.to_ndarray(format="rgb24").transpose(2, 0, 1)
    error = np.abs(got.astype(np.int64) - wanted)
    mse = float((error**2).mean())
    psnr = 10 * np.log10(255**2 / mse) if mse else np.inf
    assert error.mean() <= 1.0 and psnr >= 42.0, (error.mean(), error.max(), psnr)


@pytest.mark.parametrize("size", [(48, 64), (46, 50), (33, 47), (48, 47), (1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("pix_fmt", FORMATS)
def test_colour_equals_swscale_within_one_level(pix_fmt: str, size: tuple[int, int]) -> None:
    """Each format, at even and odd sizes: mean difference at most 1 of 255, PSNR at least 42 dB."""
    for color_space in ("bt709", "unspecified"):
        for color_range in ("limited", "full", "unspecified"):
            frame = frame_of(pix_fmt, color_space, color_range, *size)
            assert_like_swscale(converted(frame, index_of(pix_fmt, color_space, color_range, *size)), frame)


@pytest.mark.parametrize("color_range", ["limited", "full"])
@pytest.mark.parametrize(
    "color_space", ["bt709", "bt470bg", "smpte170m", "bt2020nc", "smpte240m", "fcc", "unspecified"]
)
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p"])
def test_every_matrix_equals_swscale(pix_fmt: str, color_space: str, color_range: str) -> None:
    """Each matrix our kernels know agrees with swscale's own table, and none falls through to it."""
    assert kernel_of(pix_fmt, color_space, 48) is not None
    frame = frame_of(pix_fmt, color_space, color_range, 48, 64)
    assert_like_swscale(converted(frame, index_of(pix_fmt, color_space, color_range, 48, 64)), frame)


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p"])
def test_every_sample_value_equals_swscale(pix_fmt: str) -> None:
    """Noise over all legal values in all planes, colours far out of gamut included, stays within 1 level everywhere."""
    rng = np.random.default_rng(8)
    frame = av.VideoFrame(96, 64, pix_fmt)
    for plane in frame.planes:
        plane.update(rng.integers(16, 236, plane.buffer_size, dtype=np.uint8).tobytes())
    frame.colorspace, frame.color_range = 1, 1
    got = converted(frame, index_of(pix_fmt, "bt709", "limited", 64, 96)).astype(int)
    assert np.abs(got - frame.to_ndarray(format="rgb24").transpose(2, 0, 1)).max() <= 1


def test_colour_space_changes_the_picture() -> None:
    """BT.601 and BT.709, limited and full, are told apart: the comparison above could not pass by chance."""
    frame = frame_of("yuv420p", "bt709", "limited", 48, 64)
    pictures = [
        converted(frame, index_of("yuv420p", *tag, 48, 64))
        for tag in (("bt709", "limited"), ("bt470bg", "limited"), ("bt709", "full"))
    ]
    assert all(
        np.abs(a.astype(int) - b).mean() > 2 for a, b in zip(pictures, [*pictures[1:], pictures[0]], strict=True)
    )


def test_unusual_matrix_goes_to_swscale() -> None:
    """A matrix the kernels do not know is converted by swscale rather than approximated."""
    assert kernel_of("yuv420p", "ycgco", 48) is None
    assert kernel_of("yuv422p", "bt709", 48) is None
    assert kernel_of("yuv420p", "bt709", 47) is None


@pytest.mark.parametrize("rotation", [90, 180, 270])
@pytest.mark.parametrize("size", [None, (20, 30)])
def test_rotated_video_is_shown_upright(rotation: int, size: Any) -> None:
    """The picture is turned clockwise, and a wanted size is that of the upright picture."""
    frame = frame_of("yuv420p", "bt709", "limited", 48, 64)
    flat = converted(frame, index_of("yuv420p", "bt709", "limited", 48, 64))
    got = converted(frame, index_of("yuv420p", "bt709", "limited", 48, 64, rotation), size)
    if size is None:
        assert np.array_equal(got, np.rot90(flat, k=-(rotation // 90), axes=(1, 2)))
    else:
        before = size if rotation == 180 else size[::-1]
        small = converted(frame, index_of("yuv420p", "bt709", "limited", 48, 64), before)
        assert np.array_equal(got, np.rot90(small, k=-(rotation // 90), axes=(1, 2)))


@pytest.mark.parametrize("name", ["libx264", "libx265"])
def test_resized_rows_equal_resizing_the_full_rows(name: str, tools: Any) -> None:
    """Asking for a size gives the full-size picture, resized; repeats and order change nothing."""
    from trajload.decode.resize import resize_planes

    data = tools.make_video(tools.Recipe(name="v", encoder=name, count=8))
    track = tools.whole_track(data)
    spec = tools.video_spec(track)
    full = tools.get_rows(track, data, range(8), spec)
    rows = [7, 0, 3, 3, 7]
    small = tools.get_rows(track, data, rows, spec, Image(size=(20, 24)))
    for i, row in enumerate(rows):
        wanted = np.empty((3, 20, 24), np.uint8)
        resize_planes(full[row], wanted, DecodeContext())
        assert np.array_equal(small[i], wanted)


def test_rows_equal_pyavs_pictures(tools: Any) -> None:
    """decode_rows gives PyAV's own rgb24, channels first, in the order of the rows."""
    data = tools.make_video(tools.Recipe(name="v", encoder="libx264", options=(("bf", "2"),)))
    track = tools.whole_track(data)
    rows = np.array([30, 2, 2, 17])
    got = tools.get_rows(track, data, rows, tools.video_spec(track))
    frames = decode_frames(
        track, rows, [data[r.offset : r.offset + r.size] for r in plan_reads(track, rows)], DecodeContext()
    )
    for picture, frame in zip(got, frames, strict=True):
        assert_like_swscale(picture, frame)


def test_depth_video_is_exact_at_any_size(tools: Any) -> None:
    """16-bit FFV1 comes back bit for bit, and a smaller size takes the nearest samples."""
    from fractions import Fraction

    from trajload.decode.resize import nearest_indices
    from trajload.shards.video_encode import VideoEncode, encode_video

    rng = np.random.default_rng(4)
    depth = rng.integers(0, 65536, (5, 33, 47), dtype=np.uint16)
    data, _ = encode_video(depth, rate_hz=Fraction(15), encode=VideoEncode())
    track = tools.whole_track(data)
    spec = tools.video_spec(track, Modality.DEPTH, "uint16")
    assert np.array_equal(tools.get_rows(track, data, [4, 0, 2], spec)[:, 0], depth[[4, 0, 2]])
    small = tools.get_rows(track, data, [1], spec, Image(size=(11, 60)))
    assert np.array_equal(small[0, 0], depth[1][nearest_indices(33, 11)][:, nearest_indices(47, 60)])
    turned = replace(track, index=replace(track.index, rotation=90))
    got = tools.get_rows(turned, data, [3], tools.video_spec(turned, Modality.DEPTH, "uint16"))
    assert np.array_equal(got[0, 0], np.rot90(depth[3], k=-1))
