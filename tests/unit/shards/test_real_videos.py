"""Videos that people really have, put into a shard: kept as they are, remuxed, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from trajload.errors import TrajloadError
from trajload.refs import VideoTrack
from trajload.shards.rebuild import rebuild_index
from trajload.shards.verify import verify
from trajload.shards.video_index import build_video_index
from trajload.shards.writer import Writer
from trajload.sources.native import open_native
from trajload.spec import StreamSpec
from trajload.types import Modality

SUFFIXES = (".mp4", ".mkv", ".webm", ".mov", ".avi")
MAX_BYTES = 600_000


def shape_of(path: Path) -> tuple[int, int, int]:
    """Return the size of a video as shown, by its own index where there is one, else by its container."""
    try:
        index = build_video_index(path)
    except TrajloadError:
        with av.open(str(path)) as source:
            return source.streams.video[0].height, source.streams.video[0].width, 3
    turned = index.rotation in (90, 270)
    return (index.width, index.height, 3) if turned else (index.height, index.width, 3)


@pytest.mark.real_data
def test_real_videos_are_stored_exactly_or_refused_by_name(real_data: Path, tmp_path: Path) -> None:
    """Stored ones verify, have their index rebuilt byte for byte, and as many packets as their source."""
    files = sorted(p for p in real_data.rglob("*") if p.suffix in SUFFIXES and p.stat().st_size <= MAX_BYTES)
    stored, refused = [], []
    for i, path in enumerate(files):
        try:
            spec = StreamSpec(name="cam", modality=Modality.RGB, encoding="mp4", shape=shape_of(path), dtype="uint8")
        except av.FFmpegError:
            spec = StreamSpec(name="cam", modality=Modality.RGB, encoding="mp4", shape=(8, 8, 3), dtype="uint8")
        folder = tmp_path / f"{i:03d}"
        writer = Writer(folder, streams=[spec], step_rate_hz=30)
        try:
            writer.add_episode({"cam": path})
        except TrajloadError as err:
            writer.abort()
            assert err.at.episode == "000000" and len(err.message) > 20
            refused.append(path.name)
            continue
        writer.close()
        stored.append(path.name)
        assert verify(folder).problems == [], path
        index = folder / "shards" / "000000.idx"
        good = index.read_bytes()
        index.unlink()
        rebuild_index(folder)
        assert index.read_bytes() == good, path
        dataset = open_native(folder)
        track = dataset.track(0, "cam")
        assert isinstance(track, VideoTrack) and track.num_rows == dataset.num_steps_E[0] > 0
        with av.open(str(path)) as source:
            sizes = [p.size for p in source.demux(track_stream(source, track)) if p.size]
        assert abs(len(track.index.size_P) - len(sizes)) <= np.count_nonzero(track.index.is_discard_P) + 2, path
        dataset.close()
    assert len(stored) >= 10, (stored, refused)
    # Half of a file: its header promises 14,315 frames, none of which is there.
    assert set(refused) <= {"sample_qt.mp4"}, refused


def track_stream(source: av.container.InputContainer, track: VideoTrack) -> av.video.stream.VideoStream:
    """Return the stream of `source` that the track was made from, by its size."""
    streams = source.streams.video
    return next((s for s in streams if (s.width, s.height) == (track.index.width, track.index.height)), streams[0])
