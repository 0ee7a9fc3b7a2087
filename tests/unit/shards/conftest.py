"""A small dataset with every encoding, and the values that went into it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from trajload.shards.writer import Writer
from trajload.spec import StreamSpec
from trajload.types import Modality


def make_video(num_frames: int, *, height: int = 48, width: int = 64, container: str = "mp4", gop: int = 4) -> bytes:
    """Return a small H.264 file whose frames differ."""
    out = io.BytesIO()
    with av.open(out, "w", format={"mp4": "mp4", "mkv": "matroska"}[container]) as target:
        stream = target.add_stream("libx264", rate=Fraction(30))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"g": str(gop), "bf": "0", "threads": "1", "sc_threshold": "0"}
        for i in range(num_frames):
            pixels = np.full((height, width, 3), (i * 7) % 256, np.uint8)
            pixels[: (i % height) + 1] = 255 - (i * 5) % 256
            target.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        target.mux(stream.encode(None))
    return out.getvalue()


def make_jpeg(height: int, width: int, value: int) -> bytes:
    """Return a JPEG of one gray value."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (value, value, value)).save(out, "JPEG")
    return out.getvalue()


SPECS = (
    StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(3,), dtype="float32"),
    StreamSpec(name="reward", modality=Modality.REWARD, encoding="npy", shape=(), dtype="float64"),
    StreamSpec(name="heights", modality=Modality.DEPTH, encoding="npy.zst", shape=(40, 50), dtype="uint16"),
    StreamSpec(name="cam.wrist", modality=Modality.RGB, encoding="jpg", shape=(24, 32, 3), dtype="uint8"),
    StreamSpec(name="depth", modality=Modality.DEPTH, encoding="png", shape=(12, 16, 1), dtype="uint16", units="mm"),
    StreamSpec(name="cam.front", modality=Modality.RGB, encoding="mp4", shape=(48, 64, 3), dtype="uint8"),
    StreamSpec(name="cam.back", modality=Modality.RGB, encoding="mkv", shape=(48, 64, 3), dtype="uint8"),
    StreamSpec(
        name="imu", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(6,), dtype="int16", clock="clocked"
    ),
    StreamSpec(name="task", modality=Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"),
    StreamSpec(name="note", modality=Modality.LANGUAGE, encoding="json", shape=(), dtype="str"),
    StreamSpec(name="scene", modality=Modality.METADATA, encoding="json", shape=(), dtype="json"),
)


@dataclass(frozen=True)
class Written:
    """A dataset folder and what was put into it, by episode."""

    path: Path
    episodes: list[dict[str, Any]]


def episode_values(seed: int, num_steps: int) -> dict[str, Any]:
    """Return values of every stream of `SPECS`, and under 'timestamps_ns' the clocked one's times."""
    rng = np.random.Generator(np.random.Philox(seed))
    num_imu = 2 * num_steps + 1
    return {
        "state": rng.standard_normal((num_steps, 3), dtype=np.float32),
        "reward": rng.standard_normal(num_steps),
        "heights": rng.integers(0, 2**16, (num_steps, 40, 50), dtype=np.uint16) // 256,
        "cam.wrist": [make_jpeg(24, 32, 10 * i) for i in range(num_steps)],
        "depth": rng.integers(0, 2**16, (num_steps, 12, 16), dtype=np.uint16),
        "cam.front": make_video(num_steps),
        "cam.back": make_video(num_steps, container="mkv"),
        "imu": rng.integers(-(2**15), 2**15, (num_imu, 6), dtype=np.int16),
        "task": f"push the puck nº {seed}",
        "note": [f"step {i}" for i in range(num_steps)],
        "scene": {"objects": [{"name": "puck", "mass_kg": 0.25}], "seed": seed},
        "timestamps_ns": np.cumsum(rng.integers(1, 10**7, num_imu)),
    }


def write_every_encoding(path: Path) -> Written:
    """Write two full episodes and one that lacks most streams and has explicit step times."""
    episodes = [episode_values(1, 11), episode_values(2, 6)]
    with Writer(path, streams=SPECS, step_rate_hz=Fraction(30000, 1001), provenance={"source": "a test"}) as writer:
        for i, values in enumerate(episodes):
            streams = {name: value for name, value in values.items() if name != "timestamps_ns"}
            writer.add_episode(
                streams,
                key=f"ep-{i}",
                terminated=bool(i),
                start_ns=5 * i,
                timestamps_ns={"imu": values["timestamps_ns"]},
                metadata={"operator": f"person {i}", "tries": i},
            )
        times = np.array([0, 10, 35, 36], dtype=np.int64)
        writer.add_episode({"state": np.ones((4, 3), np.float32)}, step_times_ns=times)
        episodes.append({"state": np.ones((4, 3), np.float32), "step_times_ns": times})
    return Written(path, episodes)


@pytest.fixture(scope="session")
def every_encoding(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The dataset, not to be changed; copy its folder to damage it."""
    return write_every_encoding(tmp_path_factory.mktemp("every-encoding") / "data")
