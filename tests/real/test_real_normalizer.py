"""Normalisation of real LeRobot data: stored statistics agree with the rows, absent ones are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl

pytestmark = pytest.mark.real_data

STREAMS = ("observation.state", "action")


@pytest.mark.parametrize(
    ("folder", "stored"),
    [
        ("lerobot_v2/gr00t_robot_sim_pickplace", {"mean_std", "min_max", "quantiles"}),
        ("lerobot_v2/g1_unitree_inspire_av1", set()),
        ("lerobot_v3/made_by_lerobot", {"mean_std", "min_max", "quantiles"}),
        ("lerobot_v3/reachy2_apple_storage_novideo", {"mean_std", "min_max"}),
    ],
)
def test_every_method_finds_its_statistics(real_data: Path, tmp_path: Path, folder: str, stored: set[str]) -> None:
    """From meta/stats.json where it has them, else from one pass; both put the rows where the method says."""
    dataset: Any = tl.open(real_data / folder, cache_dir=tmp_path, missing="skip")
    rows = {s: _rows(dataset, s) for s in STREAMS}
    for method in ("mean_std", "min_max", "quantiles"):
        made = tl.Normalizer.from_dataset(dataset, dict.fromkeys(STREAMS, method))  # type: ignore[arg-type]
        assert made.origin == dict.fromkeys(STREAMS, "stored" if method in stored else "measured")
        for stream in STREAMS:
            there = made.normalize(rows[stream], stream)
            assert np.isfinite(there).all()
            if method == "mean_std":
                moves = there.std(axis=0) > 1e-3
                assert np.abs(there.mean(axis=0)).max() < 0.02
                assert np.abs(there.std(axis=0)[moves] - 1).max() < 0.02
            if method == "min_max":
                assert np.abs(there).max() <= 1 + 1e-5
            back = made.denormalize(there, stream)
            span = np.abs(rows[stream]).max(axis=0) + np.array(made.streams[stream].scale)
            assert (np.abs(back - rows[stream]) <= 1e-5 * span).all()
    dataset.close()


def _rows(dataset: tl.Dataset, stream: str) -> np.ndarray:
    from trajload.pipeline.rows import read_rows

    parts = [
        read_rows(dataset, e, stream, list(range(int(dataset.num_steps_E[e])))) for e in range(dataset.num_episodes)
    ]
    return np.concatenate([part for part in parts if part is not None])
