"""Every real video: frames through the packet table equal a plain sequential decode, or the file is refused by name."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from trajload.decode import DecodeContext, decode_rows, plan_reads, row_shape
from trajload.decode.parity import compare_pictures
from trajload.decode.video import decode_frames
from trajload.errors import DecodeError, SourceError
from trajload.refs import VideoTrack
from trajload.shards.video_codec import COLOR_RANGE_NUMBERS, COLOR_SPACE_NUMBERS
from trajload.shards.video_index import build_video_index
from trajload.spec import Image, StreamSpec
from trajload.storage import LocalStore
from trajload.types import Modality

pytestmark = pytest.mark.real_data

SUFFIXES = {".mp4", ".mov", ".mkv", ".webm", ".avi", ".h264"}

# Files that must be refused, and what the refusal must say. All others must decode.
REFUSED = {
    "video/gomp4_samples/sample_qt.mp4": r"packet 0 is truncated: .* the header promises 14315 frames",
    "video/mediabunny_a/annex-b.mp4": r"packet 5 is truncated: .* after 5 whole packets; the header promises 745 frames",
    "video/vpf_res_change/test_res_change.h264": r"no timestamps at all \(96 packets\)",
}
# Frames that a plain decode gives before it fails, of the number the table has.
BROKEN = {"video/decord_tests/corrupted.mp4": (28, 50)}
SECOND_STREAMS = {"video/torchcodec_a/nasa_13013.mp4": 0}

MAX_WINDOWS = 12
# Decoded pixels per video, so that long groups of large pictures do not take minutes.
MAX_PIXELS = 60_000_000


def videos(root: Path) -> dict[str, Path]:
    found = {str(p.relative_to(root)): p for p in sorted(root.rglob("*")) if p.suffix in SUFFIXES}
    assert len(found) >= 40, f"only {len(found)} videos under {root}"
    return found


def planes_digest(frame: av.VideoFrame) -> bytes:
    """Return a digest of all planes, each cropped to the picture."""
    digest = hashlib.blake2b(digest_size=16)
    for i, plane in enumerate(frame.planes):
        component = next(c for c in frame.format.components if c.plane == i)
        rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        digest.update(np.ascontiguousarray(rows[: component.height, : component.width * ((component.bits + 7) // 8)]))
    return digest.digest()


def sequential(path: Path, stream_index: int | None) -> tuple[list[tuple[int, bytes]], str | None]:
    """Return (pts, digest) of every frame of a plain decode, and the error that ended it, if any."""
    out: list[tuple[int, bytes]] = []
    with av.open(str(path)) as container:
        stream = container.streams.best("video") if stream_index is None else container.streams[stream_index]
        stream.codec_context.thread_count = 1
        try:
            for packet in container.demux(stream):
                out += [(frame.pts, planes_digest(frame)) for frame in packet.decode()]
        except av.FFmpegError as err:
            return out, str(err)
    return out, None


def check_windows(path: Path, name: str, stream_index: int | None = None) -> None:
    reference, error = sequential(path, stream_index)
    index = build_video_index(path, stream_index=stream_index)
    num_good, num_frames = BROKEN.get(name, (len(reference), len(reference)))
    assert (error is None) == (name not in BROKEN)
    assert (len(reference), index.num_frames) == (num_good, num_frames)
    pts = index.pts_P[index.packet_of_frame_F].tolist()
    assert pts[:num_good] == [p for p, _ in reference]
    store, context = LocalStore(path.parent), DecodeContext()
    track = VideoTrack(path.name, index, 0, index.num_frames)
    rng = np.random.default_rng(0)
    pixels = 0
    ends = [np.array([0]), np.array([num_good - 1])]
    for k in range(MAX_WINDOWS):
        if k < 2:
            rows = ends[k]
        else:
            size = int(rng.integers(1, min(16, num_good) + 1))
            rows = int(rng.integers(0, num_good - size + 1)) + np.arange(size)
        blobs = [store.read(r) for r in plan_reads(track, rows)]
        frames = decode_frames(track, rows, blobs, context)
        got = [(frame.pts, planes_digest(frame)) for frame in frames]
        assert got == [reference[row] for row in rows.tolist()], f"{name}: rows {rows.tolist()}"
        last = index.packet_of_frame_F[rows[-1]] + 1
        pixels += int(last - index.seek_of_frame_F[rows[0]]) * index.width * index.height
        if pixels > MAX_PIXELS and k >= 2:
            break
    store.close()
    context.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per file, found when tests are collected; none where the data are absent."""
    if "video_name" in metafunc.fixturenames:
        import os

        default = Path(__file__).resolve().parents[3] / "shared" / "data"
        root = Path(os.environ.get("TRAJLOAD_REAL_DATA", default))
        names = list(videos(root)) if (root / "INDEX.md").is_file() else ["absent"]
        metafunc.parametrize("video_name", names)


def test_real_video_windows_equal_a_sequential_decode_or_it_is_refused(video_name: str, real_data: Path) -> None:
    """Random windows are bit-equal on every plane before colour conversion, or the refusal says why."""
    path = real_data / video_name
    if video_name in REFUSED:
        with pytest.raises((SourceError, DecodeError)) as caught:
            build_video_index(path)
        assert re.search(REFUSED[video_name], str(caught.value)), str(caught.value)
        return
    check_windows(path, video_name)
    if video_name in SECOND_STREAMS:
        check_windows(path, video_name, SECOND_STREAMS[video_name])


def test_real_video_pictures_are_the_same_by_both_engines(video_name: str, real_data: Path) -> None:
    """Windows through the compiled loop over libavcodec are PyAV's to the byte, at stored size and resized."""
    from trajload.decode.pixels import kernel_of

    if video_name in REFUSED:
        pytest.skip("refused before decoding")
    path = real_data / video_name
    index = build_video_index(path)
    size = (index.width, index.height) if index.rotation in (90, 270) else (index.height, index.width)
    spec = StreamSpec(name="c", modality=Modality.RGB, encoding="mp4", shape=(*size, 3), dtype="uint8")
    track, store = VideoTrack(path.name, index, 0, index.num_frames), LocalStore(path.parent)
    loop, plain = DecodeContext(engine="libav"), DecodeContext(engine="pyav")
    num_good = BROKEN.get(video_name, (index.num_frames, 0))[0]
    rng = np.random.default_rng(1)
    for request in (Image(), Image(size=(60, 90)), Image()):
        count = int(rng.integers(1, min(6, num_good) + 1))
        rows = int(rng.integers(0, num_good - count + 1)) + np.arange(count)
        plan = plan_reads(track, rows)
        blobs = [store.read(r) for r in plan]
        pictures = []
        for context in (loop, plain):
            out = np.empty((count, *row_shape(spec, request)[0]), np.uint8)
            decode_rows(track, rows, blobs, out, spec=spec, request=request, store=store, context=context, plan=plan)
            pictures.append(out)
        assert np.array_equal(*pictures), f"{video_name}: rows {rows.tolist()}"
    by_loop = kernel_of(index.pix_fmt, index.color_space, index.height) is not None and index.rotation == 0
    assert loop.windows_by_engine == {"libav": 3 if by_loop else 0, "pyav": 0 if by_loop else 3}
    for closable in (store, loop, plain):
        closable.close()


def test_expected_refusals_exist(real_data: Path) -> None:
    """The table of refusals names files that are there."""
    assert set(REFUSED) | set(BROKEN) | set(SECOND_STREAMS) <= set(videos(real_data))


def test_best_stream_of_the_nasa_clip_is_the_fourth(real_data: Path) -> None:
    """The default stream is FFmpeg's best one, not the first."""
    path = real_data / "video/torchcodec_a/nasa_13013.mp4"
    assert (build_video_index(path).num_frames, build_video_index(path).width) == (390, 480)
    assert build_video_index(path, stream_index=0).num_frames == 325


def test_broken_video_gives_its_good_frames_and_raises_for_the_others(real_data: Path) -> None:
    """corrupted.mp4 has 28 decodable frames of 50: the 29th raises by name, and the first are still right after it."""
    path = real_data / "video/decord_tests/corrupted.mp4"
    index = build_video_index(path)
    track, store, context = VideoTrack(path.name, index, 0, 50), LocalStore(path.parent), DecodeContext()
    reference, _ = sequential(path, None)

    def get(rows: list[int]) -> list[bytes]:
        wanted = np.array(rows)
        return [
            planes_digest(f)
            for f in decode_frames(track, wanted, [store.read(r) for r in plan_reads(track, wanted)], context)
        ]

    assert get(list(range(28))) == [digest for _, digest in reference]
    for row in (35, 49):
        with pytest.raises(
            DecodeError, match=rf"frame {row} not decodable: got \d+ frames, then packet \d+ of the video failed"
        ):
            get([row])
    assert get([0, 27]) == [reference[0][1], reference[27][1]]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("video/decord_tests/video_90.mov", (568, 320)), ("video/mediabunny_a/rotate-buck-bunny.mp4", (1920, 1080))],
)
def test_rotated_video_is_shown_upright(name: str, shape: tuple[int, int], real_data: Path) -> None:
    """A clip filmed upright is delivered upright: turned clockwise as its display matrix says."""
    path = real_data / name
    index = build_video_index(path)
    assert index.rotation == 90 and (index.width, index.height) == shape
    spec = StreamSpec(name="c", modality=Modality.RGB, encoding="mp4", shape=(*shape, 3), dtype="uint8")
    track, store, context = VideoTrack(path.name, index, 0, index.num_frames), LocalStore(path.parent), DecodeContext()
    rows = np.array([1])
    out = np.empty((1, *row_shape(spec, Image())[0]), np.uint8)
    blobs = [store.read(r) for r in plan_reads(track, rows)]
    decode_rows(track, rows, blobs, out, spec=spec, request=Image(), store=store, context=context)
    with av.open(str(path)) as container:
        frames = container.decode(container.streams.best("video"))
        wanted: Any = [next(frames) for _ in range(2)][1].to_ndarray(format="rgb24")
    error = np.abs(out[0].astype(int) - np.rot90(wanted, k=-1).transpose(2, 0, 1))
    assert error.mean() <= 1.0


def kinds_of_colour(root: Path) -> dict[tuple[str, ...], str]:
    """Return the first video of each pixel format, colour space, range and parity of the size that real videos have."""
    found: dict[tuple[str, ...], str] = {}
    for name, path in videos(root).items():
        if name not in REFUSED:
            index = build_video_index(path)
            odd = "odd" if index.width % 2 or index.height % 2 else "even"
            found.setdefault((index.pix_fmt, index.color_space, index.color_range, odd), name)
    return found


def scaled(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return one colour as swscale scales it; of all three at once it would mix those of neighbouring pixels first."""
    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(plane), format="gray")
    out: np.ndarray = picture.reformat(width=size[1], height=size[0], interpolation="AREA").to_ndarray()
    return out


def test_colours_of_each_kind_of_real_video_are_swscales(real_data: Path) -> None:
    """Mean difference at most 1 grey level and PSNR at least 42 dB, at stored size and resized by the same filter (area)."""
    kinds = kinds_of_colour(real_data)
    assert {kind[0] for kind in kinds} >= {"yuv420p", "yuv420p10le", "yuvj420p"}, kinds
    for kind, name in kinds.items():
        path = real_data / name
        index = build_video_index(path)
        upright = (index.height, index.width) if index.rotation % 180 == 0 else (index.width, index.height)
        spec = StreamSpec(name="c", modality=Modality.RGB, encoding="mp4", shape=(*upright, 3), dtype="uint8")
        track, store, context = (
            VideoTrack(path.name, index, 0, index.num_frames),
            LocalStore(path.parent),
            DecodeContext(),
        )
        rows = np.array([min(3, index.num_frames - 1)])
        blobs = [store.read(r) for r in plan_reads(track, rows)]
        (frame,) = decode_frames(track, rows, blobs, context)
        # swscale is told what the packet table says, where the frame says nothing
        frame.colorspace, frame.color_range = (
            COLOR_SPACE_NUMBERS[index.color_space],
            COLOR_RANGE_NUMBERS[index.color_range],
        )
        whole: Any = frame.to_ndarray(format="rgb24")
        small_size = (-(-upright[0] * 5 // 8), -(-upright[1] * 5 // 8))
        for size in (upright, small_size):
            out = np.empty((1, 3, *size), np.uint8)
            decode_rows(track, rows, blobs, out, spec=spec, request=Image(size=size), store=store, context=context)
            wanted = np.ascontiguousarray(np.rot90(whole, k=-index.rotation // 90))
            if size != upright:
                wanted = np.stack([scaled(wanted[..., c], size) for c in range(3)], axis=-1)
            parity = compare_pictures(out[0], np.ascontiguousarray(wanted.transpose(2, 0, 1)))
            assert parity.is_within, (name, kind, size, str(parity))
        store.close()
        context.close()
