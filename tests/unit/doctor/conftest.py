"""Datasets with one thing wrong, for the doctor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.shards.video_encode import VideoEncode
from trajload.sources.base import Dataset, EpisodeInfo

NUM_STEPS = 40

STREAMS = [
    tl.StreamSpec(name="cam", modality=tl.Modality.RGB, encoding="mp4", shape=(32, 48, 3), dtype="uint8", rate_hz=20),
    tl.StreamSpec(
        name="action", modality=tl.Modality.ACTION, encoding="npy", shape=(2,), dtype="float32", names=("force", "turn")
    ),
    tl.StreamSpec(
        name="imu",
        modality=tl.Modality.PROPRIOCEPTION,
        encoding="npy",
        shape=(3,),
        dtype="float32",
        clock="clocked",
        rate_hz=100,
    ),
    tl.StreamSpec(name="task", modality=tl.Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"),
]


def imu_times_ns(num_steps: int = NUM_STEPS) -> np.ndarray:
    """Timestamps at 100 Hz over the steps of an episode at 20 Hz."""
    return np.arange(0, num_steps * 50_000_000, 10_000_000, dtype=np.int64)


def episode(e: int, num_steps: int = NUM_STEPS) -> dict[str, Any]:
    """An episode without fault: everything moves, nothing is wild."""
    t = np.arange(num_steps)
    u = imu_times_ns(num_steps) / 1e9
    ramp = np.add.outer(np.arange(32), np.arange(48)) % 200
    return {
        "cam": ((ramp[None, :, :, None] + 3 * t[:, None, None, None] + e) % 256 * np.ones(3)).astype(np.uint8),
        "action": np.stack([np.sin(t / 5 + e), np.cos(t / 7)], axis=1).astype(np.float32),
        "imu": np.stack([np.sin(u + e), np.cos(u), u], axis=1).astype(np.float32),
        "task": "push",
    }


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Dataset]:
    """Return a function that writes a dataset of three episodes, changed by `spoil(e, values, extra)`."""

    def write(
        spoil: Callable[[int, dict[str, Any], dict[str, Any]], None] | None = None,
        *,
        gop: int = 8,
        lengths: tuple[int, ...] = (NUM_STEPS,) * 3,
    ) -> Dataset:
        with tl.Writer(
            tmp_path / "data", streams=STREAMS, step_rate_hz=20, video={"cam": VideoEncode(codec="h264", gop=gop)}
        ) as writer:
            for e, length in enumerate(lengths):
                values, extra = episode(e, length), {"timestamps_ns": {"imu": imu_times_ns(length)}}
                if spoil is not None:
                    spoil(e, values, extra)
                writer.add_episode(values, key=f"ep-{e}", **extra)
        return tl.open(tmp_path / "data")

    return write


class Altered(Dataset):
    """A real dataset of which single answers are replaced: what a damaged or foreign source might say."""

    def __init__(self, inner: Dataset, **answers: Any) -> None:
        self._inner = inner
        self._answers: Mapping[str, Any] = answers
        for name in (
            *("name", "path", "kind", "digest", "streams", "num_steps_E", "terminated_E", "step_rate_hz", "store"),
        ):
            setattr(self, name, answers.get(name, getattr(inner, name)))

    def _ask(self, question: str, *args: Any) -> Any:
        answer = self._answers.get(question)
        given = getattr(self._inner, question)(*args)
        return given if answer is None else answer(given, *args)

    def episode_key(self, episode: int) -> str:
        return self._inner.episode_key(episode)

    def episode(self, episode: int) -> EpisodeInfo:
        return self._inner.episode(episode)

    def track(self, episode: int, stream: str) -> Any:
        return self._ask("track", episode, stream)

    def step_times_ns(self, episode: int, steps: np.ndarray) -> np.ndarray:
        return self._ask("step_times_ns", episode, steps)

    def stream_times_ns(self, episode: int, stream: str) -> np.ndarray:
        return self._ask("stream_times_ns", episode, stream)


@pytest.fixture
def altered() -> type[Altered]:
    """The class that replaces single answers of a dataset."""
    return Altered
