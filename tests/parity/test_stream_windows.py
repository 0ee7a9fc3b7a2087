"""Streams with windows and clocks of their own: equal to a plain reading of the whole episode, under every setting."""

# Shapes: B windows, T places, N rows

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.pipeline.rows import read_rows

COMMON: dict[str, Any] = {"global_batch_size": 5, "seed": 3, "rank": 0, "world_size": 1}
HZ = 30

WINDOWS = {
    "chunk": tl.Window(delta_indices={"action": range(50), "cam_front": [-2, -1, 0]}, pad="edge", stride=3),
    "chunk-inside": tl.Window(delta_indices={"action": range(20), "cam_front": [-2, -1, 0]}),
    "history": tl.Window(num_steps=6, history=4, dilation=2, pad="zero"),
    "seconds": tl.Window(
        num_steps=2,
        delta_timestamps={"action": [-0.1, 0, 1 / HZ, 0.5], "proprioception": [-0.25, -0.005, 0.0, 0.02]},
        pad="edge",
    ),
    "seconds-inside": tl.Window(delta_timestamps={"proprioception": [-0.25, 0.0, 0.1], "reward": [0.1, 0.2]}, stride=2),
}
STREAMS = {
    "plain": {"action": None, "cam_front": tl.Image(size=(24, 24)), "proprioception": None, "reward": None, "language": None},
    "aligned": {
        "action": None,
        "depth": tl.Image(align="previous", age=True, tolerance_s=0.05),
        "proprioception": tl.Signal(align="linear", age=True, tolerance_s=0.02, on_miss="drop"),
        "reward": None,
        "cam_front": tl.Image(size=(24, 24)),
    },
    "shifted": {
        "action": None,
        "proprioception": tl.Signal(offset_s=0.004, age=True, tolerance_s=0.02),
        "reward": None,
        "cam_front": tl.Image(size=(24, 24)),
    },
    "interval": {"proprioception": tl.Signal(align="interval", age=True), "action": None, "reward": None, "cam_front": None},
}  # fmt: skip
CASES = [
    *itertools.product(WINDOWS, ("plain", "aligned", "shifted")),
    ("chunk", "interval"),
    ("history", "interval"),
]


def loader(dataset: tl.Dataset, window: str, streams: str, **more: Any) -> tl.Loader:
    return tl.Loader(dataset, window=WINDOWS[window], streams=STREAMS[streams], **{**COMMON, "num_workers": 0, **more})


@pytest.mark.parametrize(("window", "streams"), CASES)
def test_iteration_and_resume_equal_batch_at(dataset: tl.Dataset, window: str, streams: str) -> None:
    """Workers, prefetch and a resume in the middle change no byte of any stream, mask, age or interval."""
    with loader(dataset, window, streams) as oracle:
        expected = [oracle.batch_at(k).digest() for k in range(6)]
        assert [b.digest() for b in itertools.islice(oracle, 6)] == expected
    with loader(dataset, window, streams, num_workers=2, prefetch=3) as threads:
        got = []
        for batch in itertools.islice(threads, 3):
            got.append(batch.digest())
            state = json.dumps(threads.state_dict())
    assert len(state) < 4096
    with loader(dataset, window, streams, num_workers=2) as resumed:
        resumed.load_state_dict(json.loads(state))
        got += [b.digest() for b in itertools.islice(resumed, 3)]
    assert got == expected


@pytest.mark.parametrize("window", WINDOWS)
def test_stepwise_values_are_those_of_anchor_plus_delta(dataset: tl.Dataset, window: str) -> None:
    """Each place holds the row of its step, or of the nearest step there is with `_is_pad`, as LeRobot defines it."""
    spec = WINDOWS[window]
    own = [spec.dilation * i for i in range(-spec.history, spec.num_steps - spec.history)]
    deltas = {
        "chunk": {"action": list(range(50)), "cam_front": [-2, -1, 0]},
        "chunk-inside": {"action": list(range(20)), "cam_front": [-2, -1, 0]},
        "seconds": {"action": [-3, 0, 1, 15]},
        "seconds-inside": {"reward": [3, 6]},
    }.get(window, {})
    num_padded = 0
    with loader(dataset, window, "plain") as load:
        for batch in itertools.islice(load, 8):
            for b, ref in enumerate(batch.refs):
                anchor = ref.start + spec.history * spec.dilation
                last = int(dataset.num_steps_E[ref.episode_index]) - 1
                assert batch["step_index"][b].tolist() == [anchor + d for d in own]
                for name in ("action", "reward", "cam_front"):
                    steps = [anchor + d for d in deltas.get(name, own)]
                    rows = [min(max(s, 0), last) for s in steps]
                    is_pad = [not 0 <= s <= last for s in steps]
                    expected = read_rows(dataset, ref.episode_index, name, rows, request=STREAMS["plain"][name])
                    assert expected is not None
                    if spec.pad == "zero":
                        expected[is_pad] = 0
                    np.testing.assert_array_equal(batch[name][b].numpy(), expected)
                    assert batch[f"{name}_is_pad"][b].tolist() == is_pad
                    num_padded += sum(is_pad)
    assert (num_padded == 0) == (spec.pad == "none")
