"""A dataset whose episodes differ in what they cost: two cameras of different size, keyframes near and far apart.

Episodes stand in the order in which they were collected, robot after robot, as they do in life: so shards are as uneven
as they can be. Also used by tests.
"""

# Shapes: T frames, H height, W width

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from trajload.rng import key_rng
from trajload.shards.video_encode import VideoEncode, encode_video
from trajload.shards.writer import Writer
from trajload.spec import StreamSpec
from trajload.types import Modality, NDArray

RATE_HZ = 30


@dataclass(frozen=True)
class Part:
    """Episodes that one robot collected."""

    camera: str
    """'cam_small' or 'cam_large': the other one is missing in its episodes."""
    gop: int
    num_episodes: int


SIZES = {"cam_small": (64, 64), "cam_large": (480, 640)}
PARTS = (Part("cam_small", 8, 30), Part("cam_small", 64, 30), Part("cam_large", 8, 10), Part("cam_large", 48, 6))
"""Most windows are cheap, and a fifth costs some thirty times as much."""


def streams(sizes: dict[str, tuple[int, int]]) -> list[StreamSpec]:
    """Return the streams of the dataset."""
    cameras = [
        StreamSpec(
            name=name, modality=Modality.RGB, encoding="mp4", shape=(*size, 3), dtype="uint8", rate_hz=float(RATE_HZ)
        )
        for name, size in sizes.items()
    ]
    return [
        *cameras,
        StreamSpec(name="action", modality=Modality.ACTION, encoding="npy", shape=(7,), dtype="float32"),
        StreamSpec(name="force", modality=Modality.PROPRIOCEPTION, encoding="npy.zst", shape=(6,), dtype="float32", clock="clocked", rate_hz=100.0),
        StreamSpec(name="task", modality=Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"),
    ]  # fmt: skip


def film(num_frames: int, size: tuple[int, int], seed: int) -> NDArray:
    """Return a scene (T, H, W, 3) uint8 that a codec has to work for: texture that drifts, discs that move, some noise."""
    rng = key_rng(seed, "mixed-data")
    height, width = size
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    phase = rng.uniform(0, 6.28, size=6)
    out = np.empty((num_frames, height, width, 3), dtype=np.uint8)
    grain = rng.integers(-8, 9, size=(height, width, 3), dtype=np.int16)
    for t in range(num_frames):
        base = 110 + 50 * np.sin(x / 11 + t / 9 + phase[0]) + 40 * np.sin((y + x / 3) / 7 - t / 7 + phase[1])
        picture = np.stack([base, np.roll(base, t, axis=1), 255 - base], axis=2)
        for k in range(2):
            cy = height * (0.5 + 0.35 * np.sin(t / 13 + phase[2 + k]))
            cx = width * (0.5 + 0.35 * np.cos(t / 17 + phase[4 + k]))
            picture[(y - cy) ** 2 + (x - cx) ** 2 < (height / 7) ** 2] = (240, 60 + 90 * k, 30)
        shift = int(rng.integers(0, width))
        out[t] = np.clip(picture + np.roll(grain, shift, axis=1), 0, 255).astype(np.uint8)
    return out


def write_mixed(
    folder: Path,
    *,
    parts: Sequence[Part] = PARTS,
    sizes: dict[str, tuple[int, int]] | None = None,
    num_frames: int = 110,
    seed: int = 7,
) -> Path:
    """Write the dataset, one shard for each part, and return its folder."""
    sizes = SIZES if sizes is None else sizes
    number = 0
    for p, part in enumerate(parts):
        more = {"streams": streams(sizes), "name": "mixed", "step_rate_hz": RATE_HZ} if p == 0 else {"append": True}
        with Writer(folder, shard_bytes=1 << 40, **more) as writer:
            for _ in range(part.num_episodes):
                rng = key_rng(seed, "mixed-data", number)
                length = int(num_frames * rng.uniform(0.85, 1.15))
                encode = VideoEncode(gop=part.gop, preset="veryfast", crf=26)
                frames = film(length, sizes[part.camera], seed * 1000 + number)
                video, _ = encode_video(frames, rate_hz=Fraction(RATE_HZ), encode=encode)
                num_forces = length * 100 // RATE_HZ
                writer.add_episode(
                    {
                        part.camera: video,
                        "action": rng.normal(size=(length, 7)).astype(np.float32),
                        "force": rng.normal(size=(num_forces, 6)).astype(np.float32),
                        "task": f"robot {p} does task {number % 3}",
                    },
                    key=f"robot{p}-{number:04d}",
                    terminated=bool(number % 2),
                    timestamps_ns={"force": np.arange(num_forces, dtype=np.int64) * 10_000_000},
                    metadata={"robot": p},
                )
                number += 1
    return folder
