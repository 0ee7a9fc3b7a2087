"""Frames through the packet table equal a plain sequential decode, for every codec, container and GOP shape."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest

from trajload.decode import DecodeContext, plan_reads
from trajload.decode.video import decode_frames
from trajload.refs import VideoTrack

X265 = "log-level=none:pools=none:frame-threads=1:keyint=12:min-keyint=12:scenecut=0"
RECIPES: dict[str, dict[str, Any]] = {
    "h264": {"encoder": "libx264", "options": (("bf", "0"),)},
    "h264-b-frames": {"encoder": "libx264", "options": (("bf", "3"),)},
    "h264-b-pyramid-mkv": {
        "encoder": "libx264",
        "container": "matroska",
        "options": (("bf", "8"), ("x264-params", "b-pyramid=normal:ref=6")),
    },
    "h264-open-gop": {"encoder": "libx264", "options": (("bf", "3"), ("x264-params", "open-gop=1:scenecut=0"))},
    "h264-open-gop-mkv": {
        "encoder": "libx264",
        "container": "matroska",
        "options": (("bf", "3"), ("x264-params", "open-gop=1:scenecut=0")),
    },
    "h264-intra-refresh": {"encoder": "libx264", "options": (("bf", "0"), ("x264-params", "intra-refresh=1"))},
    "h264-interlaced": {"encoder": "libx264", "options": (("bf", "2"), ("x264-params", "interlaced=1"))},
    "h264-starts-at-1s": {"encoder": "libx264", "options": (("bf", "2"),), "first_tick": 3000},
    "h264-edit-list": {"encoder": "libx264", "options": (("bf", "2"),), "first_tick": -800},
    "h264-no-edit-list": {"encoder": "libx264", "options": (("bf", "2"),), "mux": (("use_editlist", "0"),)},
    "h264-variable-rate": {"encoder": "libx264", "options": (("bf", "2"),), "ticks": "jitter"},
    "h264-variable-rate-mkv": {"encoder": "libx264", "container": "matroska", "ticks": "jitter"},
    "h264-gop-250": {
        "encoder": "libx264",
        "options": (("bf", "2"), ("sc_threshold", "0")),
        "gop": 250,
        "count": 90,
    },
    "h264-fragmented": {
        "encoder": "libx264",
        "options": (("bf", "2"),),
        "mux": (("movflags", "frag_keyframe+empty_moov"),),
    },
    "h264-odd-444": {"encoder": "libx264", "options": (("bf", "2"),), "size": (47, 63), "pix_fmt": "yuv444p"},
    "h264-422-10bit": {"encoder": "libx264", "options": (("bf", "2"),), "pix_fmt": "yuv422p10le"},
    "h264-flv": {"encoder": "libx264", "container": "flv", "options": (("bf", "2"),)},
    "hevc": {"encoder": "libx265", "options": (("x265-params", X265 + ":bframes=3:open-gop=0"),)},
    "hevc-open-gop": {"encoder": "libx265", "options": (("x265-params", X265 + ":bframes=4:open-gop=1"),)},
    "hevc-open-gop-mkv": {
        "encoder": "libx265",
        "container": "matroska",
        "options": (("x265-params", X265 + ":bframes=4:open-gop=1"),),
    },
    "av1": {"encoder": "libsvtav1", "options": (("preset", "12"), ("svtav1-params", "lp=1")), "size": (64, 64)},
    "av1-mkv": {
        "encoder": "libsvtav1",
        "container": "matroska",
        "options": (("preset", "12"), ("svtav1-params", "lp=1")),
        "size": (64, 64),
    },
    "av1-forward-keyframes": {
        "encoder": "libsvtav1",
        "options": (("preset", "12"), ("svtav1-params", "lp=1:irefresh-type=1")),
        "size": (64, 64),
    },
    "vp9-webm": {"encoder": "libvpx-vp9", "container": "webm", "options": (("cpu-used", "5"),)},
    "vp9-mp4": {"encoder": "libvpx-vp9", "options": (("cpu-used", "5"),)},
    "vp8-webm": {"encoder": "libvpx", "container": "webm", "options": (("b", "60k"),)},
    "mpeg4-b-frames": {"encoder": "mpeg4", "options": (("bf", "2"),)},
    "mpeg4-avi-without-pts": {"encoder": "mpeg4", "container": "avi", "options": (("bf", "0"),), "tick": 100},
    "ffv1": {"encoder": "ffv1", "container": "matroska", "gop": 1},
    "ffv1-avi-groups": {"encoder": "ffv1", "container": "avi", "options": (("level", "1"),), "tick": 100},
    "mjpeg-avi": {"encoder": "mjpeg", "container": "avi", "pix_fmt": "yuvj420p", "tick": 100},
    "mjpeg-mkv": {"encoder": "mjpeg", "container": "matroska", "pix_fmt": "yuvj422p"},
}


@pytest.fixture(scope="module", params=list(RECIPES))
def made(request: pytest.FixtureRequest, tools: Any) -> tuple[str, bytes, VideoTrack, list[tuple[int, bytes]]]:
    recipe = tools.Recipe(name=request.param, **RECIPES[request.param])
    data = tools.make_video(recipe)
    return request.param, data, tools.whole_track(data), tools.sequential(data)


def fetch(tools: Any, track: VideoTrack, data: bytes, rows: Any, context: DecodeContext) -> list[tuple[int, bytes]]:
    rows = np.asarray(rows, dtype=np.int64)
    store = tools.MemoryStore(data)
    frames = decode_frames(track, rows, [store.read(r) for r in plan_reads(track, rows)], context)
    return [(frame.pts, tools.raw_planes(frame)) for frame in frames]


def test_index_counts_the_frames_a_sequential_decode_gives(made: Any) -> None:
    """The table has one frame for every frame of the plain decode, with its pts."""
    _, _, track, reference = made
    index = track.index
    assert index.pts_P[index.packet_of_frame_F].tolist() == [pts for pts, _ in reference]


def test_every_frame_alone_equals_the_sequential_decode(made: Any, tools: Any) -> None:
    """Each frame, fetched alone and in falling order by one reused context, is bit-equal before colour conversion."""
    _, data, track, reference = made
    context = DecodeContext()
    for row in reversed(range(track.num_rows)):
        assert fetch(tools, track, data, [row], context) == [reference[row]], f"frame {row}"


def test_random_windows_equal_the_sequential_decode(made: Any, tools: Any) -> None:
    """Windows at random places, with steps between frames, repeats and disorder, are bit-equal."""
    _, data, track, reference = made
    rng = np.random.default_rng(11)
    context = DecodeContext()
    for _ in range(12):
        size = int(rng.integers(1, 9))
        rows = (rng.integers(0, track.num_rows) + np.arange(size) * rng.integers(1, 4)) % track.num_rows
        rows = rng.permutation(np.concatenate([rows, rows[:2]]))
        got = fetch(tools, track, data, rows, context)
        assert got == [reference[row] for row in rows.tolist()], rows


@pytest.mark.parametrize("name", ["h264-open-gop", "hevc-open-gop", "h264-open-gop-mkv", "hevc-open-gop-mkv"])
def test_frames_shown_before_their_keyframe_start_a_group_earlier(name: str, tools: Any) -> None:
    """Leading frames of an open group exist in these videos and are decoded from the group before."""
    track = tools.whole_track(tools.make_video(tools.Recipe(name=name, **RECIPES[name])))
    index = track.index
    keys = index.gop_start_G
    nearest = keys[np.searchsorted(keys, index.packet_of_frame_F, side="right") - 1]
    leading = index.seek_of_frame_F < nearest
    assert leading.any()
    shown_before = index.pts_P[index.packet_of_frame_F] < index.pts_P[nearest]
    assert np.array_equal(leading, shown_before)


def test_gradual_refresh_is_not_taken_for_a_keyframe(tools: Any) -> None:
    """Packets that only begin a gradual refresh are flagged as keyframes by the container, but not by the index."""
    from trajload.shards.video_codec import is_random_access

    name = "h264-intra-refresh"
    recipe = tools.Recipe(
        name=name, **{**RECIPES[name], "options": (("bf", "0"), ("x264-params", "intra-refresh=1:scenecut=0"))}
    )
    data = tools.make_video(recipe)
    index = tools.whole_track(data).index
    assert index.gop_start_G.tolist() == [0]
    first = data[index.offset_P[0] : index.offset_P[0] + index.size_P[0]]
    assert is_random_access("h264", index.extradata, first)


def test_edit_list_packets_are_kept_for_reference_but_are_no_frames(tools: Any) -> None:
    """Frames before the edit list's start are not counted, and their packets are still there to decode from."""
    index = tools.whole_track(tools.make_video(tools.Recipe(name="e", **RECIPES["h264-edit-list"]))).index
    assert index.is_discard_P.sum() == 8
    assert index.num_frames == 28
    assert index.pts_P[index.packet_of_frame_F[0]] == 0


def test_frames_cut_off_from_their_group_are_no_frames(tools: Any) -> None:
    """A file that begins with an open group has the frames a plain decode gives: those that refer to what is missing are left out."""
    whole = tools.make_video(tools.Recipe(name="h", **RECIPES["hevc-open-gop-mkv"]))
    second = int(tools.whole_track(whole).index.gop_start_G[1])
    buffer = io.BytesIO()
    with av.open(io.BytesIO(whole)) as source, av.open(buffer, "w", format="matroska") as output:
        copy = output.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size and number >= second:
                packet.stream = copy
                output.mux(packet)
    data = buffer.getvalue()
    track, reference = tools.whole_track(data), tools.sequential(data)
    assert track.index.is_discard_P.sum() > 0
    assert fetch(tools, track, data, range(track.num_rows), DecodeContext()) == reference


def test_negative_times_are_as_good_as_any(tools: Any) -> None:
    """A table whose pts are all negative gives the same frames."""
    data = tools.make_video(tools.Recipe(name="n", **RECIPES["h264-b-frames"]))
    track, reference = tools.whole_track(data), tools.sequential(data)
    index = replace(track.index, pts_P=track.index.pts_P - 1_000_000, dts_P=track.index.dts_P - 1_000_000)
    got = fetch(tools, replace(track, index=index), data, [20, 3], DecodeContext())
    assert got == [(reference[i][0] - 1_000_000, reference[i][1]) for i in (20, 3)]


def test_track_of_a_later_episode_counts_from_its_first_frame(tools: Any) -> None:
    """Row i of a track is frame first_frame + i: several episodes share one file."""
    data = tools.make_video(tools.Recipe(name="s", **RECIPES["h264"]))
    track, reference = tools.whole_track(data), tools.sequential(data)
    part = replace(track, first_frame=17, num_rows=10)
    assert fetch(tools, part, data, [0, 9], DecodeContext()) == [reference[17], reference[26]]


def test_only_the_groups_needed_are_read(tools: Any) -> None:
    """One frame in the middle costs its own group of pictures and no more."""
    data = tools.make_video(tools.Recipe(name="g", encoder="libx264", options=(("bf", "0"), ("sc_threshold", "0"))))
    track = tools.whole_track(data)
    index = track.index
    assert index.gop_start_G.tolist() == [0, 12, 24]
    (where,) = plan_reads(track, np.array([15]))
    assert where.offset == index.offset_P[12]
    assert where.size == index.offset_P[23] + index.size_P[23] - index.offset_P[12]
