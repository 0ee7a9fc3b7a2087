"""Generates a data set in trajload's own format, and the same mp4 files loose. Each is made once and kept."""

from __future__ import annotations

import tarfile
from fractions import Fraction
from pathlib import Path

import numpy as np
from _data import make_pictures, make_video_dataset

from workloads.signals import make_signals
from workloads.spec import FPS, Data


def make_native(data: Data, folder: Path) -> Path:
    """Write `folder/native` and `folder/files`; does nothing where both are complete."""
    root = data.root(folder)
    if (root / "complete").exists():
        return root
    if not data.signals:
        return make_video_dataset(
            root, num_episodes=data.num_episodes, num_steps=data.num_steps, height=data.height, width=data.width,
            gop=data.gop, crf=data.crf,
        )  # fmt: skip
    from trajload import Modality, StreamSpec, Writer
    from trajload.shards.video_encode import VideoEncode

    pictures = [
        StreamSpec(
            name=camera, modality=Modality.RGB, encoding="mp4", shape=(data.height, data.width, 3), dtype="uint8"
        )
        for camera in data.cameras
    ]
    kinds = {"action": Modality.ACTION, "reward": Modality.REWARD}
    signals = [
        StreamSpec(
            name=name, modality=kinds.get(name, Modality.PROPRIOCEPTION), encoding="npy", shape=(size,), dtype="float32"
        )
        for name, size in data.signals.items()
    ]
    encode = {camera: VideoEncode(codec=data.codec, gop=data.gop, crf=data.crf) for camera in data.cameras}  # type: ignore[arg-type]
    with Writer(root / "native", streams=[*pictures, *signals], step_rate_hz=Fraction(FPS), video=encode) as writer:
        for episode in range(data.num_episodes):
            values: dict[str, np.ndarray] = make_signals(data, episode)
            for i, camera in enumerate(data.cameras):
                values[camera] = make_pictures(episode, data.num_steps, data.height, data.width, view=i)
            writer.add_episode(values, key=f"ep{episode:05d}")
    _loose_files(data, folder)
    (root / "complete").touch()
    return root


def _loose_files(data: Data, folder: Path) -> None:
    for shard in sorted((data.root(folder) / "native" / "shards").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if not member.name.endswith(".mp4"):
                    continue
                key, camera = Path(member.name).name.removesuffix(".mp4").split(".", 1)
                path = data.mp4(folder, camera, int(key.removeprefix("ep")))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
