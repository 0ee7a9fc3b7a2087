"""Write your own episodes as a dataset: a camera, an action, a sensor on its own clock, and an instruction.

usage: python examples/write_dataset.py my-dataset
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import trajload as tl

STREAMS = [
    tl.StreamSpec(
        name="camera", modality=tl.Modality.RGB, encoding="mp4", shape=(48, 64, 3), dtype="uint8", rate_hz=20
    ),
    tl.StreamSpec(
        name="action", modality=tl.Modality.ACTION, encoding="npy", shape=(2,), dtype="float32", names=("vx", "vy")
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
    tl.StreamSpec(name="instruction", modality=tl.Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"),
]


def record(episode: int) -> tuple[dict[str, object], np.ndarray]:
    """Return one episode's streams and the IMU's timestamps; a robot would hand you these."""
    num_steps = 40 + 10 * episode
    angle = np.linspace(0.0, 2.0 * np.pi, num_steps)
    x, y = 32 + 20 * np.cos(angle), 24 + 14 * np.sin(angle)
    columns, rows = np.meshgrid(np.arange(64), np.arange(48))
    is_dot = (columns - x[:, None, None]) ** 2 + (rows - y[:, None, None]) ** 2 < 5**2
    camera = np.where(is_dot[..., None], [240, 90, 40], [30, 40, 60]).astype(np.uint8)
    action = np.stack([np.gradient(x), np.gradient(y)], axis=1).astype(np.float32)
    imu_ns = np.arange(0, num_steps * 50_000_000, 10_000_000, dtype=np.int64)  # int64 nanoseconds, from step 0 on
    imu = np.stack([np.sin(imu_ns / 1e9), np.cos(imu_ns / 1e9), np.full(len(imu_ns), 9.81)], axis=1)
    streams = {"camera": camera, "action": action, "imu": imu.astype(np.float32), "instruction": "draw a circle"}
    return streams, imu_ns


def main(argv: Sequence[str] | None = None) -> tl.Dataset:
    """Write three episodes, and return the dataset opened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to make")
    args = parser.parse_args(argv)

    with tl.Writer(args.out, streams=STREAMS, name="circles", step_rate_hz=20) as writer:
        for episode in range(3):
            streams, imu_ns = record(episode)
            writer.add_episode(streams, key=f"circle-{episode}", terminated=True, timestamps_ns={"imu": imu_ns})

    dataset = tl.open(args.out)
    print(dataset)
    loader = tl.Loader(dataset, window=tl.Window(num_steps=8), global_batch_size=4, seed=0, num_workers=0)
    with loader:
        print(loader.batch_at(0))
    return dataset


if __name__ == "__main__":
    main()
