"""The short way for windows of video gives what the long way gives, and leaves to it what it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xxhash

from trajload.decode import DecodeContext, plan_reads
from trajload.decode.plan import VideoReads
from trajload.decode.quick_video import QuickVideo, same_pictures
from trajload.errors import DecodeError, WindowError
from trajload.pipeline.quick_tracks import QuickTracks
from trajload.refs import TextTrack

ROWS = ([0], [3, 4, 5, 6], [2, 5, 8, 11], [4, 4, 4, 9], [9, 4, 9], [0, 1, 34, 35])


def run(quick: QuickVideo, data: bytes, rows: Any, spec: Any, context: DecodeContext) -> np.ndarray | None:
    """Return what the short way gives, None where it does not go."""
    rows_T = np.asarray(rows, np.int64)
    reads = quick.plan(rows_T)
    blobs = [data[where.offset : where.offset + where.size] for where in reads]
    out = np.full((len(rows_T), 3, *spec.shape[:2]), 77, np.uint8)
    return out if quick.decode(rows_T, reads, blobs, out, spec, context) else None


def test_windows_equal_those_of_the_long_way(video: Any, tools: Any) -> None:
    """Rising, falling, repeated and far rows; one context for all of them."""
    data, track = video
    spec, quick, context = tools.video_spec(track), QuickVideo(track, object()), DecodeContext(engine="libav")
    for rows in ROWS:
        found = run(quick, data, rows, spec, context)
        assert found is not None
        assert np.array_equal(found, tools.get_rows(track, data, rows, spec))
    assert context.windows_by_engine == {"libav": len(ROWS), "pyav": 0}
    context.close()
    assert not context.quick_setups


def test_plans_equal_those_of_the_long_way(video: Any) -> None:
    """The same ranges, and the same error for a row that does not exist."""
    _, track = video
    quick = QuickVideo(track, object())
    for rows in ROWS:
        rows_T = np.asarray(rows, np.int64)
        found, wanted = quick.plan(rows_T), plan_reads(track, rows_T)
        assert list(found) == list(wanted)
        assert isinstance(found, VideoReads) and isinstance(wanted, VideoReads)
        assert np.array_equal(found.packets_P4, wanted.packets_P4)
    with pytest.raises(WindowError, match="row 36 does not exist"):
        quick.plan(np.array([36]))


def test_damage_is_left_to_the_long_way(video: Any, tools: Any) -> None:
    """Bytes that miss their checksum, or are too few, never reach a decoder."""
    data, track = video
    spec, quick, context = tools.video_spec(track), QuickVideo(track, object()), DecodeContext(engine="libav")
    broken = bytearray(data)
    broken[int(track.index.offset_P[1]) + 9] ^= 1
    assert run(quick, bytes(broken), [1, 2], spec, context) is None
    assert run(quick, data[: int(track.index.offset_P[1])], [1, 2], spec, context) is None
    assert not context.quick_setups


def test_pyav_words_the_error_of_a_frame_that_does_not_come_out(video: Any, tools: Any) -> None:
    """A damaged packet with a fitting checksum fails as it does on the long way; the next window is right again."""
    data, track = video
    spec, context = tools.video_spec(track), DecodeContext(engine="libav")
    first, size = int(track.index.offset_P[0]), int(track.index.size_P[0])
    broken = data[:first] + bytes([255]) * size + data[first + size :]
    start, stop = 0, int(track.index.gop_start_G[1])
    packets = zip(track.index.offset_P[start:stop].tolist(), track.index.size_P[start:stop].tolist(), strict=True)
    sums = track.index.gop_checksum_G.copy()
    sums[0] = xxhash.xxh3_64_intdigest(b"".join(broken[o : o + n] for o, n in packets))
    lying = replace(track, index=replace(track.index, gop_checksum_G=sums))
    with pytest.raises(DecodeError) as wanted:
        tools.get_rows(lying, broken, [0, 1], spec)
    key = object()
    with pytest.raises(DecodeError) as found:
        run(QuickVideo(lying, key), broken, [0, 1], spec, context)
    assert found.value.message == wanted.value.message
    again = run(QuickVideo(track, key), data, [0, 1], spec, context)
    assert again is not None and np.array_equal(again, tools.get_rows(track, data, [0, 1], spec))


def test_pyav_alone_takes_the_long_way(video: Any, tools: Any) -> None:
    """Without the compiled loop there is no short way."""
    data, track = video
    context = DecodeContext(engine="pyav")
    assert run(QuickVideo(track, object()), data, [1], tools.video_spec(track), context) is None


def test_kept_tracks_stay_within_their_budget(video: Any) -> None:
    """The oldest goes first; what is no video is not kept; a cleared set is empty."""
    _, track = video
    size = QuickVideo(track, object()).num_bytes
    kept = QuickTracks(max_bytes=max(3 * size, 128 * len(track.index.is_keyframe_P)))
    for episode in range(50):
        assert kept.put(episode, "cam", track) is not None
        assert kept.num_bytes <= max(3 * size, 128 * len(track.index.is_keyframe_P))
    assert kept.get(49, "cam") is not None and kept.get(0, "cam") is None and kept.get(49, "other") is None
    assert kept.put(0, "words", TextTrack("f", "txt", 0, 1, 0, 1)) is None
    assert QuickTracks(max_bytes=100).put(0, "cam", track) is None
    kept.clear()
    assert kept.num_bytes == 0 and kept.get(49, "cam") is None


def test_tracks_of_one_kind_share_a_decoder(video: Any) -> None:
    """Two headers that differ in anything a picture depends on never do."""
    index = video[1].index
    assert same_pictures(index) == same_pictures(replace(index, offset_P=index.offset_P + 1))
    for change in ({"color_range": "full"}, {"rotation": 90}, {"extradata": b""}, {"width": 66}):
        assert same_pictures(index) != same_pictures(replace(index, **change))
