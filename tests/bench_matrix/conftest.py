"""Data for the matrix of verdicts, and the module of slow parts, which worker processes import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def slow_parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `slow_parts`, importable by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import slow_parts

    return slow_parts


@pytest.fixture(scope="session")
def long_gops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose video has a keyframe every 120 frames only, big enough for decoding to be felt."""
    from trajload import StreamSpec, Writer
    from trajload.shards.video_encode import VideoEncode
    from trajload.types import Modality

    path = tmp_path_factory.mktemp("long") / "long-gops"
    camera = StreamSpec(
        name="cam", modality=Modality.RGB, encoding="mp4", shape=(128, 128, 3), dtype="uint8", rate_hz=10.0
    )
    video = {"cam": VideoEncode(codec="h264", gop=120, crf=28)}
    with Writer(path, streams=[camera], name="long-gops", step_rate_hz=10.0, video=video) as writer:
        for episode in range(6):
            noise = np.random.Generator(np.random.Philox(key=episode)).integers(0, 255, (16, 16, 3), dtype=np.uint8)
            still = np.kron(noise, np.ones((8, 8, 1), dtype=np.uint8))
            frames = np.stack([np.roll(still, step, axis=1) for step in range(240)])
            writer.add_episode({"cam": frames}, key=f"episode-{episode}")
    return path
