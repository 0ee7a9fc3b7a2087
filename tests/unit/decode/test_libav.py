"""The compiled loop over libavcodec gives PyAV's bytes, says what it did, gives way where it must, and leaks nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from trajload.decode import DecodeContext
from trajload.decode.libav_symbols import LibavUnavailableError, find_libav
from trajload.decode.video import decode_frames
from trajload.errors import ConfigError, DecodeError
from trajload.refs import VideoTrack
from trajload.spec import Image
from trajload.types import Modality

X265 = "log-level=none:pools=none:frame-threads=1:keyint=12:min-keyint=12:scenecut=0"
RECIPES: dict[str, dict[str, Any]] = {
    "h264": {"encoder": "libx264", "options": (("bf", "0"),)},
    "h264-b-pyramid": {"encoder": "libx264", "options": (("bf", "8"), ("x264-params", "b-pyramid=normal:ref=6"))},
    "h264-open-gop": {"encoder": "libx264", "options": (("bf", "3"), ("x264-params", "open-gop=1:scenecut=0"))},
    "h264-intra-refresh": {"encoder": "libx264", "options": (("bf", "0"), ("x264-params", "intra-refresh=1"))},
    "h264-interlaced": {"encoder": "libx264", "options": (("bf", "2"), ("x264-params", "interlaced=1"))},
    "h264-edit-list": {"encoder": "libx264", "options": (("bf", "2"),), "first_tick": -800},
    "h264-variable-rate": {"encoder": "libx264", "options": (("bf", "2"),), "ticks": "jitter"},
    "h264-gop-250": {"encoder": "libx264", "options": (("bf", "2"), ("sc_threshold", "0")), "gop": 250, "count": 90},
    "h264-cropped": {"encoder": "libx264", "options": (("bf", "2"),), "size": (34, 38)},
    "h264-odd-444": {"encoder": "libx264", "options": (("bf", "2"),), "size": (47, 63), "pix_fmt": "yuv444p"},
    "h264-full-range": {"encoder": "libx264", "pix_fmt": "yuvj420p"},
    "hevc-open-gop": {"encoder": "libx265", "options": (("x265-params", X265 + ":bframes=4:open-gop=1"),)},
    "hevc-mkv": {
        "encoder": "libx265",
        "container": "matroska",
        "options": (("x265-params", X265 + ":bframes=3:open-gop=0"),),
    },
    "av1": {"encoder": "libsvtav1", "options": (("preset", "12"), ("svtav1-params", "lp=1")), "size": (64, 64)},
    "vp9": {"encoder": "libvpx-vp9", "container": "webm", "options": (("cpu-used", "5"),)},
    "vp8": {"encoder": "libvpx", "container": "webm", "options": (("b", "60k"),)},
    "mpeg4": {"encoder": "mpeg4", "options": (("bf", "2"),)},
    "ffv1": {"encoder": "ffv1", "container": "matroska"},
    "mjpeg": {"encoder": "mjpeg", "container": "matroska", "pix_fmt": "yuvj420p"},
}
SIZES = [None, (24, 32), (48, 64), (37, 90)]


@pytest.fixture(scope="module", params=list(RECIPES))
def made(request: pytest.FixtureRequest, tools: Any) -> tuple[bytes, VideoTrack]:
    data = tools.make_video(tools.Recipe(name=request.param, **RECIPES[request.param]))
    return data, tools.whole_track(data)


def windows(track: VideoTrack, count: int, seed: int) -> list[np.ndarray]:
    """Return windows with steps between frames, repeats and disorder."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        size = int(rng.integers(1, 9))
        rows = (rng.integers(0, track.num_rows) + np.arange(size) * rng.integers(1, 4)) % track.num_rows
        out.append(rng.permutation(np.concatenate([rows, rows[:2]])))
    return out


def test_libav_passes_its_self_test_with_the_pyav_installed_here() -> None:
    """The releases of FFmpeg that this project is tested with are known, so the loop is used, not just allowed."""
    assert find_libav()[1] == ""
    assert DecodeContext().engine == "libav"
    assert DecodeContext(engine="pyav").engine == "pyav"


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_random_windows_are_pyavs_to_the_byte(made: Any, size: Any, tools: Any) -> None:
    """Every codec, container and shape of group, at stored and other sizes, one context reused: all by the loop."""
    data, track = made
    spec = tools.video_spec(track)
    loop, plain = DecodeContext(engine="libav"), DecodeContext(engine="pyav")
    for rows in windows(track, 12, seed=5):
        got, wanted = (tools.get_rows(track, data, rows, spec, Image(size=size), context=c) for c in (loop, plain))
        assert np.array_equal(got, wanted), rows
    assert loop.windows_by_engine == {"libav": 12, "pyav": 0}
    assert plain.windows_by_engine == {"libav": 0, "pyav": 12}


def test_each_frame_alone_in_falling_order_is_pyavs(made: Any, tools: Any) -> None:
    """No frame depends on what the decoder did before."""
    data, track = made
    spec = tools.video_spec(track)
    loop, plain = DecodeContext(engine="libav"), DecodeContext(engine="pyav")
    whole = tools.get_rows(track, data, range(track.num_rows), spec, context=plain)
    for row in reversed(range(track.num_rows)):
        assert np.array_equal(tools.get_rows(track, data, [row], spec, context=loop)[0], whole[row]), row
    assert loop.windows_by_engine["pyav"] == 0


@pytest.mark.parametrize(("pix_fmt", "dtype"), [("gray", "uint8"), ("gray16le", "uint16")])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_depth_is_copied_exactly(pix_fmt: str, dtype: str, size: Any, tools: Any) -> None:
    """Gray samples of one and two bytes come out as PyAV gives them, at stored size and nearest-sampled."""
    data = tools.make_video(
        tools.Recipe(name="d", encoder="ffv1", container="matroska", pix_fmt=pix_fmt, count=20, size=(46, 62))
    )
    track = tools.whole_track(data)
    spec = tools.video_spec(track, Modality.DEPTH, dtype)
    loop, plain = DecodeContext(engine="libav"), DecodeContext(engine="pyav")
    for rows in windows(track, 8, seed=6):
        got, wanted = (tools.get_rows(track, data, rows, spec, Image(size=size), context=c) for c in (loop, plain))
        assert got.dtype == dtype and np.array_equal(got, wanted)
    assert loop.windows_by_engine == {"libav": 8, "pyav": 0}


@pytest.mark.parametrize("change", [{"pix_fmt": "yuv422p10le"}, {"pix_fmt": "yuv420p", "size": (47, 64)}], ids=str)
def test_formats_without_a_kernel_go_through_pyav(change: Any, tools: Any) -> None:
    """swscale's formats are decoded whatever engine is asked for, and counted as PyAV's."""
    recipe = {"encoder": "ffv1", "container": "matroska", **change}
    data = tools.make_video(tools.Recipe(name="s", count=6, **recipe))
    track = tools.whole_track(data)
    context = DecodeContext(engine="libav")
    tools.get_rows(track, data, [1, 4], tools.video_spec(track), context=context)
    assert context.windows_by_engine == {"libav": 0, "pyav": 1}


def test_rotated_video_goes_through_pyav(video: Any, tools: Any) -> None:
    """Turning is PyAV's path's work."""
    data, track = video
    turned = replace(track, index=replace(track.index, rotation=90))
    context = DecodeContext()
    got = tools.get_rows(turned, data, [5], tools.video_spec(turned), context=context)
    assert got.shape == (1, 3, 64, 48)
    assert context.windows_by_engine == {"libav": 0, "pyav": 1}


def test_frame_of_another_size_raises_and_later_windows_are_right(video: Any, tools: Any) -> None:
    """An index that lies about the size gives PyAV's error, and no byte is read from planes of unknown size."""
    data, track = video
    wrong = replace(track, index=replace(track.index, width=32))
    context = DecodeContext(engine="libav")
    for _ in range(2):
        with pytest.raises(DecodeError, match=r"frame 3 is 64x48 yuv420p, expected 32x48 yuv420p"):
            tools.get_rows(wrong, data, [3], tools.video_spec(wrong), context=context)
    spec = tools.video_spec(track)
    assert np.array_equal(
        tools.get_rows(track, data, [3], spec, context=context), tools.get_rows(track, data, [3], spec)
    )
    assert context.windows_by_engine == {"libav": 1, "pyav": 0}


def test_undecodable_stream_raises_the_same_error_by_either_engine(video: Any, tools: Any) -> None:
    """What the loop cannot decode is tried by PyAV, whose words the error has."""
    data, track = video
    wrong = replace(track, index=replace(track.index, codec="hevc", extradata=b""))
    messages = []
    for engine in ("libav", "pyav"):
        with pytest.raises(DecodeError, match=r"frame 9 not decodable: got 0 frames") as caught:
            tools.get_rows(wrong, data, [9], tools.video_spec(wrong), context=DecodeContext(engine=engine))  # type: ignore[arg-type]
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_empty_packet_is_not_taken_for_the_end_of_the_stream(video: Any, tools: Any) -> None:
    """A table with a packet of no bytes goes through PyAV, as libav would stop at it."""
    data, track = video
    size_P = track.index.size_P.copy()
    size_P[35] = 0
    index = replace(track.index, size_P=size_P)
    group = b"".join(
        data[o : o + s] for o, s in zip(index.offset_P[24:36].tolist(), size_P[24:36].tolist(), strict=True)
    )
    sums = index.gop_checksum_G.copy()
    sums[2] = xxhash.xxh3_64_intdigest(group)
    context = DecodeContext(engine="libav")
    short = replace(track, index=replace(index, gop_checksum_G=sums))
    with pytest.raises(DecodeError):
        tools.get_rows(short, data, [35], tools.video_spec(track), context=context)
    assert context.windows_by_engine["libav"] == 0


def test_one_libavcodec_is_loaded() -> None:
    """A fresh process that decodes through the loop has mapped exactly the libavcodec that PyAV brought."""
    code = (
        "from trajload.decode import DecodeContext; assert DecodeContext().engine == 'libav'\n"
        "names = {l.split()[-1] for l in open('/proc/self/maps') if 'libavcodec' in l or 'libavutil' in l}\n"
        "print(len(names))"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs Linux")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip() == "2"


@pytest.mark.parametrize("field", ["flags_offset", "errors_offset", "skip"])
def test_wrong_struct_layout_is_found_by_the_self_test(field: str) -> None:
    """Offsets of another release do not pass: PyAV would take over."""
    from trajload.decode.libav_check import check_libav

    libav = find_libav()[0]
    assert libav is not None
    if field == "skip":
        wrong = replace(libav, functions={**libav.functions, "av_opt_find": lambda *args: 0})
    else:
        wrong = replace(libav, **{field: getattr(libav, field) + 4})  # type: ignore[arg-type]
    with pytest.raises(LibavUnavailableError):
        check_libav(wrong)


def test_engine_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the libraries are unknown, libav on demand is an error and libav by choice is PyAV, with the reason."""
    import trajload.decode.libav_symbols as symbols

    monkeypatch.setattr(symbols, "find_libav", lambda: (None, "libavcodec 99 is not known"))
    with pytest.raises(ConfigError, match="engine 'libav' cannot be used here: libavcodec 99 is not known"):
        DecodeContext(engine="libav")
    context = DecodeContext()
    assert (context.engine, context.engine_reason) == ("pyav", "libavcodec 99 is not known")


def test_unknown_release_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A major version that is not listed keeps the loop from being tried at all."""
    import av

    import trajload.decode.libav_symbols as symbols

    monkeypatch.setattr(av, "library_versions", {**av.library_versions, "libavcodec": (99, 0, 0)})
    with pytest.raises(LibavUnavailableError, match="libavcodec 99 with libavutil 60 is not known"):
        symbols._load()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_twenty_thousand_windows_leave_memory_flat(tools: Any) -> None:
    """Frames, packets and decoders are all given back: growth stays below a hundred bytes a window."""
    data = tools.make_video(tools.Recipe(name="l", encoder="mpeg4", count=4, gop=2, size=(16, 32)))
    track = tools.whole_track(data)
    spec = tools.video_spec(track)
    context = DecodeContext(engine="libav")

    def run(count: int) -> None:
        for i in range(count):
            tools.get_rows(track, data, [i % 3, i % 3 + 1], spec, context=context)
            if i % 500 == 0:
                context.close()

    run(2000)
    num_runs, growth = 0, 2_000_000
    while growth >= 2_000_000 and num_runs < 3:  # the system may give a process large pages at any time; a leak goes on
        gc.collect()
        before = resident_bytes()
        run(20_000)
        gc.collect()
        num_runs, growth = num_runs + 1, resident_bytes() - before
    assert growth < 2_000_000
    assert context.windows_by_engine == {"libav": 2000 + 20_000 * num_runs, "pyav": 0}


def test_damaged_windows_leave_memory_flat(video: Any, tools: Any) -> None:
    """Errors free the decoder they came from."""
    data, track = video
    wrong = replace(track, index=replace(track.index, width=32))
    spec = tools.video_spec(wrong)
    context = DecodeContext(engine="libav")

    def run(count: int) -> None:
        for _ in range(count):
            with pytest.raises(DecodeError):
                tools.get_rows(wrong, data, [3], spec, context=context)

    run(50)
    before = resident_bytes()
    run(200)
    # a decoder of this stream takes over a megabyte
    assert resident_bytes() - before < 20_000_000


def test_decode_frames_are_pyavs_own(video: Any) -> None:
    """Frames for inspection come from PyAV whatever the engine."""
    data, track = video
    from trajload.decode import plan_reads

    rows = np.array([4])
    blobs = [data[r.offset : r.offset + r.size] for r in plan_reads(track, rows)]
    (frame,) = decode_frames(track, rows, blobs, DecodeContext(engine="libav"))
    assert frame.width == 64
