"""Frames decoded for nothing: the arithmetic of leads against the plan that decoding follows."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import trajload as tl
from trajload.costs.leads import gop_length, lead_frames, row_of_step, window_leads
from trajload.decode.plan import plan_reads
from trajload.refs import VideoTrack
from trajload.shards.video_encode import VideoEncode, encode_video
from trajload.shards.video_index import build_video_index


@pytest.mark.parametrize(("gop", "b_frames", "codec"), [(1, 0, "h264"), (8, 0, "h264"), (12, 2, "h264"), (9, 0, "vp9")])
@pytest.mark.parametrize("step", [1, 3, 20])
def test_leads_are_what_the_plan_decodes_beyond_the_rows(
    mixed_data: ModuleType, gop: int, b_frames: int, codec: str, step: int
) -> None:
    """For every start, with neighbouring rows, gaps inside a group, and gaps beyond groups."""
    encode = VideoEncode(gop=gop, b_frames=b_frames, codec=codec, preset="veryfast" if codec == "h264" else None)
    data, _ = encode_video(mixed_data.film(50, (32, 48), 1), rate_hz=Fraction(30), encode=encode)
    index = build_video_index(data)
    track = VideoTrack("v.mp4", index, 0, index.num_frames)
    rows_WT = np.arange(50 - 2 * step)[:, None] + step * np.arange(3)
    got_W = lead_frames(index, rows_WT)
    for rows_T, got in zip(rows_WT, got_W.tolist(), strict=True):
        reads = plan_reads(track, np.ascontiguousarray(rows_T))
        assert got == len(reads.packets_P4) - 3
    if gop == 1:
        assert not got_W.any()
    assert gop_length(index) == gop


def test_repeated_rows_are_decoded_once(mixed_data: ModuleType) -> None:
    """A window that is padded at the end of its episode asks for one frame several times."""
    data, _ = encode_video(mixed_data.film(20, (32, 48), 1), rate_hz=Fraction(30), encode=VideoEncode(gop=10))
    index = build_video_index(data)
    assert lead_frames(index, np.array([[18, 19, 19, 19], [9, 9, 9, 9]])).tolist() == [8, 9]


def test_windows_of_a_track_begin_at_its_first_frame(mixed_data: ModuleType) -> None:
    """Of a stretch of a longer video, and clamped at the end of the episode."""
    data, _ = encode_video(mixed_data.film(40, (32, 48), 1), rate_hz=Fraction(30), encode=VideoEncode(gop=10))
    track = VideoTrack("v.mp4", build_video_index(data), 13, 20)
    got_W = window_leads(track, np.array([0, 7, 18]), 20, tl.Window(num_steps=4), np.arange(4))
    assert got_W.tolist() == [3, 0, 1]


def test_rows_of_a_slow_clock_repeat(demo_dataset: Path) -> None:
    """Each step takes the nearest row of a clocked stream; a stepwise one needs no table."""
    dataset = tl.open(demo_dataset)
    assert row_of_step(dataset, 0, "cam_front") is None
    row_S = row_of_step(dataset, 0, "depth")
    assert row_S is not None and len(row_S) == dataset.num_steps_E[0]
    times_N = dataset.stream_times_ns(0, "depth")
    times_S = dataset.step_times_ns(0, np.arange(len(row_S)))
    distance_SN = np.abs(times_S[:, None] - times_N[None, :])
    np.testing.assert_array_equal(distance_SN[np.arange(len(row_S)), row_S], distance_SN.min(axis=1))
    dataset.close()
