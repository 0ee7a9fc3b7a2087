"""Three small datasets of pictures and signals that share some streams, under other names: for tests of mixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import trajload as tl
from trajload.rng import key_rng

FOLDERS = ("sim", "lab", "field")


def write_source(
    folder: Path,
    number: int,
    *,
    camera: str,
    action: str,
    size: int,
    num_episodes: int,
    num_steps: int,
    extra: tuple[str, ...] = (),
) -> Path:
    """Write a dataset of jpg pictures (size, size) and actions (3,), of its own rate; `extra` may hold 'wrist' and 'text'."""
    streams = [
        tl.StreamSpec(name=camera, modality=tl.Modality.RGB, encoding="jpg", shape=(size, size, 3), dtype="uint8"),
        tl.StreamSpec(name=action, modality=tl.Modality.ACTION, encoding="npy", shape=(3,), dtype="float32"),
    ]
    if "wrist" in extra:
        streams.append(
            tl.StreamSpec(name="wrist", modality=tl.Modality.RGB, encoding="png", shape=(8, 8, 3), dtype="uint8")
        )
    if "text" in extra:
        streams.append(tl.StreamSpec(name="text", modality=tl.Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"))
    with tl.Writer(folder, streams=streams, name=f"made-{number}", step_rate_hz=10 * (number + 1)) as writer:
        for episode in range(num_episodes):
            draws, steps = key_rng(number, "pictures", episode), num_steps + 7 * episode
            values: dict[str, Any] = {
                camera: draws.integers(0, 256, (steps, size // 8, size // 8, 3), dtype=np.uint8)
                .repeat(8, 1)
                .repeat(8, 2),
                action: draws.normal(size=(steps, 3)).astype(np.float32) * (number + 1) + number,
            }
            if "wrist" in extra:
                values["wrist"] = draws.integers(0, 256, (steps, 8, 8, 3), dtype=np.uint8)
            if "text" in extra:
                values["text"] = f"episode {episode} of {number}"
            writer.add_episode(values, key=f"{number}-{episode}", terminated=True)
    return folder


def write_three(folder: Path, *, num_episodes: int = 3, num_steps: int = 40) -> dict[str, Path]:
    """Return the folders by name: 'sim' and 'lab' with a camera 'image', 'field' with 'front'; sizes differ."""
    more: dict[str, Any] = {"num_episodes": num_episodes, "num_steps": num_steps}
    return {
        "sim": write_source(folder / "sim", 0, camera="image", action="action", size=16, **more),
        "lab": write_source(
            folder / "lab", 1, camera="image", action="action", size=24, extra=("wrist", "text"), **more
        ),
        "field": write_source(folder / "field", 2, camera="front", action="command", size=32, extra=("text",), **more),
    }
