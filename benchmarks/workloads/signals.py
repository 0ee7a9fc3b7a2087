"""Signals of an episode, a function of its number alone: for writing them, and for checking what a loader delivers."""

# Shapes: N steps, D signal size

from __future__ import annotations

import numpy as np

from trajload.rng import key_rng
from workloads.spec import Data


def make_signals(data: Data, episode: int) -> dict[str, np.ndarray]:
    """Return every signal of an episode, float32 (N, D). The first two columns tell episode and step."""
    out = {}
    for i, (name, size) in enumerate(data.signals.items()):
        values = key_rng(0, "bench-signal", episode, i).normal(size=(data.num_steps, size)).astype(np.float32)
        if size >= 2:
            values[:, 0], values[:, 1] = episode, np.arange(data.num_steps)
        out[name] = values
    return out
