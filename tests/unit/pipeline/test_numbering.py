"""Windows left out by clocks are exactly those that planning each window alone would find wanting."""

# Shapes: N rows of a stream in its episode

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.align.rows import stepwise_rows
from trajload.errors import ConfigError, WindowError
from trajload.pipeline.config import StreamChoice, choose_streams
from trajload.pipeline.numbering import number_windows
from trajload.pipeline.rowplan import RowPlanner
from trajload.refs import TableTrack
from trajload.rng import key_rng
from trajload.sources.base import Dataset, EpisodeInfo
from trajload.spec import Signal, StreamSpec, UniformClock, Window
from trajload.types import Modality

STEP_NS = 50_000_000


class Clocks(Dataset):
    """Episodes of an action and a jittered, gappy clocked signal; every fourth lacks the signal. Holds no values."""

    name, path, kind, digest = "clocks", ".", "test", "0"
    step_rate_hz = 20.0

    def __init__(self, case: int) -> None:
        rng = key_rng(49, "test-numbering", case)
        self.num_steps_E = rng.integers(0, 25, int(rng.integers(1, 9)))
        fields: dict[str, Any] = {"modality": Modality.ACTION, "encoding": "npy", "shape": (2,), "dtype": "float32"}
        self.streams = {
            "action": StreamSpec(name="action", **fields),
            "imu": StreamSpec(name="imu", clock="clocked", rate_hz=100, **fields),
        }
        self._jitter = case % 2 * 9_000_000
        self._step_times = [self._steps(rng, int(n)) for n in self.num_steps_E]
        self._times = [self._rows(rng, int(n)) for n in self.num_steps_E]

    def _steps(self, rng: np.random.Generator, num_steps: int) -> np.ndarray:
        even = UniformClock(rate_hz=Fraction(20)).times_ns(np.arange(num_steps))
        return even + rng.integers(0, self._jitter + 1, num_steps)

    def _rows(self, rng: np.random.Generator, num_steps: int) -> np.ndarray:
        times = np.arange(num_steps * 5 + 1) * 10_000_000 + rng.integers(0, 9_000_000, num_steps * 5 + 1)
        return times[rng.random(len(times)) > 0.25]

    def episode_key(self, episode: int) -> str:
        return f"ep-{episode}"

    def episode(self, episode: int) -> EpisodeInfo:
        return EpisodeInfo(episode, self.episode_key(episode), int(self.num_steps_E[episode]), "-", None, {})

    def track(self, episode: int, stream: str) -> TableTrack | None:
        if stream == "imu":
            has = episode % 4 != 3 and len(self._times[episode]) > 0
            return TableTrack("-", self, len(self._times[episode])) if has else None  # type: ignore[arg-type]
        return TableTrack("-", self, int(self.num_steps_E[episode]))  # type: ignore[arg-type]

    def step_times_ns(self, episode: int, steps: np.ndarray) -> np.ndarray:
        return self._step_times[episode][steps]

    def stream_times_ns(self, episode: int, stream: str) -> np.ndarray:
        return self._times[episode]


def windows_that_plan(dataset: Dataset, window: Window, choices: tuple[StreamChoice, ...]) -> list[tuple[int, int]]:
    """Return (episode, anchor) of every window that planning alone finds whole, by trying every step."""
    planner, found = RowPlanner(dataset, window), []
    imu = next(c for c in choices if c.name == "imu")
    first = -min([window.first_offset, *(int(c.places.steps_T[0]) for c in choices)]) if window.pad == "none" else 0
    for episode, num_steps in enumerate(dataset.num_steps_E.tolist()):
        track = dataset.track(episode, "imu")
        if track is None and imu.request.on_missing == "drop":
            continue
        for anchor in range(first, num_steps, window.stride):
            try:
                own = stepwise_rows(anchor, num_steps, window)
                for choice in choices:
                    stepwise_rows(anchor, num_steps, window, choice.places.steps_T)
            except WindowError:
                continue  # a step outside under pad="none"
            if track is not None:
                planned = planner.plan(imu, track, episode, anchor, own)
                if window.pad == "none" and planned.is_outside_T.any():
                    continue
                if imu.request.on_miss == "drop" and (planned.is_pad_T & ~planned.is_outside_T).any():
                    continue
            found.append((episode, anchor))
    return found


@given(st.integers(0, 10_000), st.data())
@settings(max_examples=80, deadline=None)
def test_windows_numbered_are_those_that_plan_without_a_fault(case: int, data: st.DataObject) -> None:
    """For every padding, delta, rule and tolerance: ids number exactly the whole windows, and invert."""
    rising = st.lists(st.integers(-6, 6), min_size=1, max_size=4, unique=True).map(sorted)
    deltas: dict[str, Any] = {}
    kind = data.draw(st.sampled_from(["plain", "steps", "seconds"]))
    align = data.draw(
        st.sampled_from(["nearest", "previous", "linear", "exact", *([] if kind == "seconds" else ["interval"])])
    )
    if kind == "steps":
        deltas["delta_indices"] = {"imu": data.draw(rising), "action": data.draw(rising)}
    elif kind == "seconds":
        deltas["delta_timestamps"] = {"imu": [k * 0.0171 for k in data.draw(rising)]}
    num_steps = data.draw(st.integers(1, 4))
    window = Window(
        num_steps=num_steps,
        history=data.draw(st.integers(0, num_steps - 1)),
        stride=data.draw(st.integers(1, 3)),
        dilation=data.draw(st.integers(1, 2)),
        pad=data.draw(st.sampled_from(["none", "edge", "zero"])),
        **deltas,
    )
    signal = Signal(
        align=align,
        on_miss=data.draw(st.sampled_from(["drop", "mask"])),
        on_missing=data.draw(st.sampled_from(["drop", "mask"])),
        tolerance_s=None if align in ("exact", "interval") else data.draw(st.sampled_from([0.004, 0.01, 0.03])),
        offset_s=data.draw(st.sampled_from([0.0, 0.013])),
    )
    dataset = Clocks(case)
    choices = choose_streams(dataset, {"imu": signal, "action": None}, window)
    expected = windows_that_plan(dataset, window, choices)
    if not expected:
        with pytest.raises(WindowError, match=r"no window is left|no episode is (long enough|left)"):
            number_windows(dataset, window, choices)
        return
    table = number_windows(dataset, window, choices)
    episode_B, anchor_B = table.locate(np.arange(table.num_windows))
    assert list(zip(episode_B.tolist(), anchor_B.tolist(), strict=True)) == expected
    assert table.window_id(episode_B, anchor_B).tolist() == list(range(len(expected)))


def test_stream_named_like_a_key_of_another_is_refused() -> None:
    """'imu_count' cannot stand beside an interval of 'imu'."""
    dataset = Clocks(1)
    dataset.streams = {**dataset.streams, "imu_count": StreamSpec(**{**_fields(dataset), "name": "imu_count"})}
    with pytest.raises(ConfigError, match=r"stream 'imu_count' has the name of a batch key of stream 'imu'"):
        choose_streams(dataset, {"imu": Signal(align="interval"), "imu_count": None}, Window())


def _fields(dataset: Dataset) -> dict[str, Any]:
    spec = dataset.streams["action"]
    return {"modality": spec.modality, "encoding": spec.encoding, "shape": spec.shape, "dtype": spec.dtype}
