"""Cutting frames out of a video keeps their bits, wherever the cut falls."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest

from trajload.convert.cut import cut_video
from trajload.errors import ShardCorruptError, SourceError, TrajloadError
from trajload.shards.video_index import build_video_index

NUM = 40


@pytest.fixture(
    scope="module", params=[(16, 2), (16, 0), (1, 0), (40, 3)], ids=["gop16 b2", "gop16", "intra", "one gop b3"]
)
def video(request, tmp_path_factory, maker) -> Path:
    path = tmp_path_factory.mktemp("cut") / "long.mp4"
    gop, b_frames = request.param
    maker.write_video(path, [maker.picture(1, s) for s in range(NUM)], gop=gop, b_frames=b_frames)
    return path


def play(source) -> list[np.ndarray]:
    with av.open(source) as container:
        return [frame.to_ndarray() for frame in container.decode(video=0)]


def test_every_cut_shows_exactly_its_frames(video):
    """All starts and a spread of lengths: the frames of the cut, played plainly, are bit-equal and no more, no fewer."""
    index, whole = build_video_index(video), play(str(video))
    for first in range(NUM):
        for num in {1, 2, 7, 16, NUM - first}:
            if first + num > NUM:
                continue
            got = play(io.BytesIO(cut_video(video, index, first, num)))
            assert len(got) == num, (first, num)
            assert all(np.array_equal(a, b) for a, b in zip(got, whole[first : first + num], strict=True)), (first, num)


def test_cut_is_deterministic(video):
    """Same arguments, same bytes: no dates, no random identifiers."""
    index = build_video_index(video)
    assert cut_video(video, index, 5, 20) == cut_video(video, index, 5, 20)


def test_cut_takes_no_more_packets_than_it_needs(tmp_path, maker):
    """A stretch from a keyframe takes its own packets; one inside a group takes the lead-in from the keyframe."""
    path = tmp_path / "v.mp4"
    maker.write_video(path, [maker.picture(0, s) for s in range(NUM)], gop=10, b_frames=0)
    index = build_video_index(path)
    assert len(build_video_index(cut_video(path, index, 10, 10)).size_P) == 10
    lead_in = build_video_index(cut_video(path, index, 13, 7))
    assert (len(lead_in.size_P), int(lead_in.is_discard_P.sum()), lead_in.num_frames) == (10, 3, 7)


def test_source_that_changed_since_it_was_indexed_is_refused(tmp_path, maker):
    """Packets that are not where the index says give an error, not other frames."""
    path = tmp_path / "v.mp4"
    maker.write_video(path, [maker.picture(0, s) for s in range(NUM)])
    index = build_video_index(path)
    data = bytearray(path.read_bytes())
    first = int(index.offset_P[0])
    data[first : first + 200] = bytes(200)
    path.write_bytes(data)
    with pytest.raises(ShardCorruptError, match=r"packets \[0, 12\) of 'v\.mp4' differ from what was indexed"):
        cut_video(path, index, 0, 20)


def test_rotated_real_video_keeps_its_rotation(real_data):
    """Display rotation survives the cut, or the cut is refused by name."""
    checked = 0
    for path in sorted((real_data / "video").rglob("*.m*")):
        try:
            index = build_video_index(path)
        except TrajloadError:
            continue
        if index.rotation == 0 or index.num_frames < 12:
            continue
        try:
            cut = build_video_index(cut_video(path, index, 5, 6))
        except SourceError as err:
            assert "Pass reencode=VideoEncode(...)" in str(err)
            continue
        checked += 1
        assert (cut.rotation, cut.num_frames) == (index.rotation, 6)
    assert checked >= 1
