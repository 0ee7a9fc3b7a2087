"""The compiled plan of a video window is the plan worked out plainly, on healthy tables and strange ones."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.decode.plan import MAX_GAP_BYTES, VideoReads, merge_ranges, plan_reads
from trajload.errors import DecodeError, WindowError
from trajload.refs import VideoIndex, VideoTrack


def make_track(groups: list[int], *, gaps: bool, shuffle_pts: bool, shuffle_file: bool, seed: int) -> VideoTrack:
    """Return a track of a made-up packet table with groups of such sizes; frames skip its first one."""
    rng = np.random.default_rng(seed)
    num = sum(groups)
    size_P = rng.integers(1, 3000, num)
    place = rng.permutation(num) if shuffle_file else np.arange(num)
    steps = np.zeros(num, np.int64)
    steps[place] = size_P + (rng.choice([0, 100, 2 * MAX_GAP_BYTES], num) if gaps else 0)
    offset_P = (1000 + np.cumsum(steps) - steps)[place]
    starts = np.cumsum([0, *groups[:-1]])
    order = np.arange(num)
    if shuffle_pts:
        # within each group the keyframe comes first, as in a closed group
        for a, n in zip(starts, groups, strict=True):
            order[a + 1 : a + n] = a + 1 + rng.permutation(n - 1)
    pts_P = 10 * order - 40
    is_key_P = np.zeros(num, bool)
    is_key_P[starts] = True
    packet_F = np.argsort(pts_P)
    seek_F = starts[np.searchsorted(starts, packet_F, side="right") - 1]
    index = VideoIndex(
        codec="h264", extradata=b"", time_base=Fraction(1, 30), width=2, height=2, pix_fmt="yuv420p",
        color_space="bt709", color_range="limited", rotation=0, offset_P=offset_P, size_P=size_P, pts_P=pts_P, dts_P=np.arange(num),
        is_keyframe_P=is_key_P, is_discard_P=np.zeros(num, bool), gop_checksum_G=np.zeros(len(groups), np.uint64),
        packet_of_frame_F=packet_F, seek_of_frame_F=seek_F,
    )  # fmt: skip
    return VideoTrack("f", index, 1, num - 1)


def depth_of(pts: np.ndarray) -> int:
    """Return the greatest number of packets before one that are shown after it, less the other way round."""
    return max(i - int((pts < pts[i]).sum()) for i in range(len(pts)))


# the first plan of a process waits for the compiler
@settings(deadline=None)
@given(
    groups=st.lists(st.integers(1, 12), min_size=1, max_size=8).filter(lambda g: sum(g) > 1),
    gaps=st.booleans(),
    shuffle_pts=st.booleans(),
    shuffle_file=st.booleans(),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_plan_is_what_each_row_needs(
    groups: list[int], gaps: bool, shuffle_pts: bool, shuffle_file: bool, seed: int, data: st.DataObject
) -> None:
    """Packets, groups, ranges, depths and rows against sets and sorted lists, row by row."""
    track = make_track(groups, gaps=gaps, shuffle_pts=shuffle_pts, shuffle_file=shuffle_file, seed=seed)
    index = track.index
    rows = np.array(data.draw(st.lists(st.integers(0, track.num_rows - 1), min_size=1, max_size=20)))
    if data.draw(st.booleans()):
        rows.sort()
    reads = plan_reads(track, rows)
    assert isinstance(reads, VideoReads) and reads.rows is rows
    frames = rows + 1
    needed: set[int] = set()
    for frame in frames.tolist():
        needed |= set(range(index.seek_of_frame_F[frame], index.packet_of_frame_F[frame] + 1))
    fed = [np.flatnonzero(index.dts_P == dts)[0] for dts in reads.packets_P4[:, 3].tolist()]
    assert fed == sorted(needed)
    for column, table in enumerate((index.offset_P, index.size_P, index.pts_P)):
        assert np.array_equal(reads.packets_P4[:, column], table[fed])
    assert reads.segments_S3[0, 0] == 0 and reads.segments_S3[-1, 1] == len(fed)
    assert np.array_equal(reads.segments_S3[1:, 0], reads.segments_S3[:-1, 1])
    for start, stop, depth in reads.segments_S3.tolist():
        run = np.array(fed[start:stop])
        assert index.is_keyframe_P[run[0]] and (np.diff(run) == 1).all()
        assert depth == depth_of(index.pts_P[run])
    group_P = np.cumsum(index.is_keyframe_P) - 1
    assert reads.groups_G5[:, 2].tolist() == sorted(set(group_P[fed].tolist()))
    whole = []
    for first, last, group, start, stop in reads.groups_G5.tolist():
        packets = np.flatnonzero(group_P == group)
        assert (first, last) == (packets[0], packets[-1] + 1)
        whole += packets.tolist()
        ends = index.offset_P[packets] + index.size_P[packets]
        is_run = np.array_equal(index.offset_P[packets][1:], ends[:-1])
        assert (start, stop) == ((index.offset_P[first], ends[-1]) if is_run else (-1, -1))
    assert list(reads) == merge_ranges("f", index.offset_P[whole], index.size_P[whole])
    assert reads.ranges_R2.tolist() == [[r.offset, r.offset + r.size] for r in reads]
    assert (np.diff(reads.wanted_W3[:, 0]) > 0).all()
    assert reads.first_of_frame == {f: frames.tolist().index(f) for f in frames.tolist()}
    assert np.array_equal(index.pts_P[index.packet_of_frame_F[reads.wanted_W3[:, 1]]], reads.wanted_W3[:, 0])


@pytest.mark.parametrize("rows", [[-1], [3, 30], [5, 2, -7]])
def test_row_outside_the_track_is_named(rows: list[int]) -> None:
    """In order or not, the first bad end of the rows is in the message."""
    track = make_track([10, 10], gaps=False, shuffle_pts=False, shuffle_file=False, seed=0)
    with pytest.raises(WindowError, match=r"row (-1|30|-7) does not exist: the stream has 19 rows"):
        plan_reads(track, np.array(rows))


def test_frame_that_the_video_lacks_is_named() -> None:
    """A track that promises more than its video has."""
    track = make_track([10, 10], gaps=False, shuffle_pts=False, shuffle_file=False, seed=0)
    with pytest.raises(
        DecodeError, match=r"frame 24 not decodable: the video has 20 frames, but its track promises frames \[1, 31\)"
    ):
        plan_reads(replace(track, num_rows=30), np.array([3, 23]))


@pytest.mark.parametrize(
    ("name", "value"),
    [("seek_of_frame_F", -5), ("seek_of_frame_F", 1 << 40), ("packet_of_frame_F", 20), ("packet_of_frame_F", -1)],
)
def test_table_that_points_outside_itself_is_refused(name: str, value: int) -> None:
    """The compiled code reads nothing by such a number."""
    track = make_track([10, 10], gaps=False, shuffle_pts=False, shuffle_file=False, seed=0)
    table = getattr(track.index, name).copy()
    table[6] = value
    with pytest.raises(DecodeError, match="packet table of the video in 'f' makes no sense"):
        plan_reads(replace(track, index=replace(track.index, **{name: table})), np.array([4, 5]))


def test_table_of_unequal_columns_is_refused() -> None:
    """One column shorter than the others."""
    track = make_track([10, 10], gaps=False, shuffle_pts=False, shuffle_file=False, seed=0)
    for name in ("offset_P", "size_P", "pts_P", "dts_P", "is_keyframe_P", "seek_of_frame_F"):
        short = replace(track.index, **{name: getattr(track.index, name)[:-1]})
        with pytest.raises(DecodeError, match="makes no sense"):
            plan_reads(replace(track, index=short), np.array([4]))


def test_read_only_and_strided_tables_are_planned_alike() -> None:
    """Tables come from mapped files, caches and slices."""
    track = make_track([10, 10], gaps=False, shuffle_pts=True, shuffle_file=False, seed=0)
    wanted = plan_reads(track, np.arange(12))
    tables = {n: getattr(track.index, n) for n in VideoIndex.__slots__ if n.endswith(("_P", "_F"))}
    strided = {n: np.repeat(t, 2)[::2] for n, t in tables.items()}
    frozen = {n: np.frombuffer(t.tobytes(), t.dtype) for n, t in tables.items()}
    for variant in (strided, frozen):
        got = plan_reads(replace(track, index=replace(track.index, **variant)), np.repeat(np.arange(12), 2)[::2])
        assert list(got) == list(wanted) and np.array_equal(got.packets_P4, wanted.packets_P4)
