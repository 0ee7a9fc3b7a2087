"""Planning reads: pure arithmetic, minimal ranges, joined where the gap is cheaper than a read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajload.decode.plan import MAX_GAP_BYTES, Blobs, merge_ranges, plan_reads
from trajload.errors import ShardCorruptError
from trajload.refs import ArrayTrack, ByteRange, ImageTrack, TextTrack


def test_neighbouring_rows_are_one_range() -> None:
    """By hand: rows 2 and 3 of 8 bytes from byte 100 are bytes [116, 132)."""
    track = ArrayTrack("f", 100, np.dtype(np.float64), (), 10)
    assert plan_reads(track, np.array([3, 2, 3])) == [ByteRange("f", 116, 16)]


def test_distant_rows_are_separate_ranges() -> None:
    """Beyond the gap limit two reads are planned, below it one."""
    track = ArrayTrack("f", 0, np.dtype(np.uint8), (1024,), 1000)
    near, far = MAX_GAP_BYTES // 1024 + 1, MAX_GAP_BYTES // 1024 + 2
    assert plan_reads(track, np.array([0, near])) == [ByteRange("f", 0, (near + 1) * 1024)]
    assert plan_reads(track, np.array([far, 0])) == [ByteRange("f", 0, 1024), ByteRange("f", far * 1024, 1024)]


def test_text_is_read_whole() -> None:
    """A text member is one range whatever the row."""
    assert plan_reads(TextTrack("f", "json", 512, 33, None, 5), np.array([4])) == [ByteRange("f", 512, 33)]


def test_images_are_read_whole() -> None:
    """Only the pictures asked for, joined where they lie close."""
    track = ImageTrack(
        "f", "png", (1, 1, 3), np.array([0, 200_000, 200_100]), np.array([50, 60, 70]), np.zeros(3, np.uint64)
    )
    assert plan_reads(track, np.array([2, 1])) == [ByteRange("f", 200_000, 170)]
    assert plan_reads(track, np.array([0, 2])) == [ByteRange("f", 0, 50), ByteRange("f", 200_100, 70)]


pieces = st.lists(st.tuples(st.integers(0, 10 * MAX_GAP_BYTES), st.integers(1, 5000)), min_size=1, max_size=30)


@given(pieces)
def test_merged_ranges_cover_every_piece_once_and_in_order(pieces: list[tuple[int, int]]) -> None:
    """Every piece lies in exactly one range; ranges rise, do not touch, and end with a piece."""
    offset = np.array([p[0] for p in pieces], np.int64)
    size = np.array([p[1] for p in pieces], np.int64)
    ranges = merge_ranges("f", offset, size)
    for a, b in itertools.pairwise(ranges):
        assert b.offset - (a.offset + a.size) > MAX_GAP_BYTES
    for o, s in pieces:
        assert sum(r.offset <= o and o + s <= r.offset + r.size for r in ranges) == 1
    assert {r.offset for r in ranges} <= set(offset.tolist())
    assert {r.offset + r.size for r in ranges} <= set((offset + size).tolist())


NOISE = np.random.default_rng(0).integers(0, 256, 10 * MAX_GAP_BYTES + 5000, dtype=np.uint8).tobytes()


@given(pieces)
def test_blobs_give_back_every_piece(pieces: list[tuple[int, int]]) -> None:
    """A piece is found in the blob of its range, as a view."""
    data = NOISE
    offset = np.array([p[0] for p in pieces], np.int64)
    size = np.array([p[1] for p in pieces], np.int64)
    ranges = merge_ranges("f", offset, size)
    blobs = Blobs(ranges, [data[r.offset : r.offset + r.size] for r in ranges])
    for o, s in pieces:
        assert blobs.view(o, s) == data[o : o + s]


def test_short_blob_is_truncation() -> None:
    """A blob of another length than planned is refused with both lengths."""
    with pytest.raises(ShardCorruptError, match=r"bytes \[10, 30\) of 'f' are truncated: got 19 bytes, expected 20"):
        Blobs([ByteRange("f", 10, 20)], [b"x" * 19])
