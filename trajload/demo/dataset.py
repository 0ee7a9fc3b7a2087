"""Writes the demo dataset: what `trajload demo` trains on, and what tests open when they need known truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trajload.demo.barcode import CELLS_PER_ROW, MAX_VALUE
from trajload.demo.physics import STEP_HZ
from trajload.demo.scene import DEPTH_HZ, PROPRIOCEPTION_HZ, EpisodeLength, record_episode
from trajload.errors import ConfigError
from trajload.rng import check_seed
from trajload.shards.video_encode import VideoEncode
from trajload.shards.writer import Writer
from trajload.spec import StreamSpec
from trajload.types import Modality, PathLikeStr

__all__ = ["demo_streams", "generate"]

NAME = "trajload-demo"
GENERATOR_VERSION = 1
"""Raised whenever the same arguments give other episodes."""

Progress = Callable[[int, int], None]
"""Called with (episodes done, episodes in all)."""


def demo_streams(size: int = 64) -> list[StreamSpec]:
    """Return the streams of the demo dataset with pictures of `size` x `size` pixels."""
    motion = ("x", "y", "vx", "vy")
    return [
        StreamSpec(
            name="cam_front",
            modality=Modality.RGB,
            encoding="mp4",
            shape=(size, size, 3),
            dtype="uint8",
            rate_hz=STEP_HZ,
        ),
        StreamSpec(
            name="cam_side",
            modality=Modality.RGB,
            encoding="mp4",
            shape=(size, size, 3),
            dtype="uint8",
            rate_hz=STEP_HZ,
        ),
        StreamSpec(
            name="depth",
            modality=Modality.DEPTH,
            encoding="mkv",
            shape=(size, size, 1),
            dtype="uint16",
            clock="clocked",
            rate_hz=DEPTH_HZ,
            units="mm",
        ),
        StreamSpec(
            name="proprioception",
            modality=Modality.PROPRIOCEPTION,
            encoding="npy",
            shape=(4,),
            dtype="float32",
            clock="clocked",
            rate_hz=PROPRIOCEPTION_HZ,
            units="m, m/s",
            names=motion,
        ),
        StreamSpec(
            name="action",
            modality=Modality.ACTION,
            encoding="npy",
            shape=(2,),
            dtype="float32",
            rate_hz=STEP_HZ,
            names=("force_x", "force_y"),
        ),
        StreamSpec(name="reward", modality=Modality.REWARD, encoding="npy", shape=(), dtype="float32", rate_hz=STEP_HZ),
        StreamSpec(
            name="puck",
            modality=Modality.METADATA,
            encoding="npy",
            shape=(4,),
            dtype="float32",
            rate_hz=STEP_HZ,
            units="m, m/s",
            names=motion,
        ),
        StreamSpec(name="language", modality=Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"),
    ]


def generate(
    out: PathLikeStr,
    *,
    num_episodes: int = 24,
    seed: int = 0,
    size: int = 64,
    length: EpisodeLength | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the demo dataset to the new folder `out` and return its path.

    A force-driven pusher pushes a puck towards a goal. The dataset is a function of the arguments: same arguments and
    same library versions, same bytes.

    Args:
        out: Folder to make; it must not hold a dataset yet.
        num_episodes: 1 to 4096.
        seed: Of starts, goals, colours, noise and clock jitter.
        size: Height and width of all pictures in pixels, a multiple of 16, at least 48.
        length: Bounds on the episodes' steps; 60 to 240 by default.
        progress: Called after each episode with (episodes done, episodes in all).

    Raises:
        ConfigError: An argument is out of range, before anything is written.
    """
    check_seed(seed)
    length = length or EpisodeLength()
    _check(num_episodes, size, length)
    path = Path(out)
    with Writer(
        path,
        streams=demo_streams(size),
        name=NAME,
        step_rate_hz=STEP_HZ,
        provenance={
            "source": "simulated by trajload.demo",
            "generator_version": GENERATOR_VERSION,
            "arguments": {
                "num_episodes": num_episodes,
                "seed": seed,
                "size": size,
                "min_steps": length.min_steps,
                "max_steps": length.max_steps,
            },
            "licence": "Apache-2.0",
        },
        video={
            "cam_front": VideoEncode(codec="h264", gop=10, crf=18),
            "cam_side": VideoEncode(codec="h264", gop=10, crf=18),
            "depth": VideoEncode(codec="ffv1"),
        },
    ) as writer:
        for episode in range(num_episodes):
            recorded = record_episode(seed, episode, size=size, length=length)
            writer.add_episode(
                recorded.arrays,
                key=f"episode-{episode:06d}",
                terminated=recorded.terminated,
                timestamps_ns=recorded.timestamps_ns,
                metadata=recorded.metadata,
            )
            if progress is not None:
                progress(episode + 1, num_episodes)
    return path


def _check(num_episodes: int, size: int, length: EpisodeLength) -> None:
    if not 1 <= num_episodes <= MAX_VALUE + 1:
        raise ConfigError(f"num_episodes={num_episodes!r} is invalid: expected 1 to {MAX_VALUE + 1}.")
    if size < 48 or size % CELLS_PER_ROW:
        raise ConfigError(
            f"size={size!r} is invalid: expected pixels, a multiple of {CELLS_PER_ROW} of at least 48, "
            f"so that the barcode survives the video codec."
        )
    if not 2 <= length.min_steps <= length.max_steps <= MAX_VALUE + 1:
        raise ConfigError(f"length={length!r} is invalid: expected 2 <= min_steps <= max_steps <= {MAX_VALUE + 1}.")
