"""What a window declares: history, deltas in steps and seconds, and what is refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.align.places import reach, stream_places
from trajload.align.rows import stepwise_rows, window_steps
from trajload.deltas import seconds_to_ns, steps_of_ns
from trajload.errors import ConfigError, WindowError
from trajload.spec import Signal, StreamSpec
from trajload.types import Modality
from trajload.window import Window

RISING = st.lists(st.integers(-60, 60), min_size=1, max_size=20, unique=True).map(sorted)


def spec(name: str = "action", clock: Any = "stepwise", **changes: Any) -> StreamSpec:
    fields = {"modality": Modality.ACTION, "encoding": "npy", "shape": (2,), "dtype": "float32", **changes}
    return StreamSpec(name=name, clock=clock, **fields)


@given(RISING, st.lists(st.floats(-100, 100), min_size=1, max_size=9), st.integers(1, 9), st.data())
@settings(deadline=None)
def test_window_survives_json_pickle_and_hash(
    deltas: list[int], seconds: list[float], num_steps: int, data: st.DataObject
) -> None:
    """A window made of its own JSON is the same window, with the same hash, and so is its pickle."""
    rising = sorted({round(s, 9) for s in seconds})
    window = Window(
        num_steps=num_steps,
        history=data.draw(st.integers(0, num_steps - 1)),
        delta_indices={"b": deltas, "a": range(40)},
        delta_timestamps={"imu": rising},
        delta_tolerance_s=0.002,
    )
    again = Window(**json.loads(json.dumps(window.to_json())))
    assert again == window == pickle.loads(pickle.dumps(window)) == replace(window, stride=1)
    assert hash(again) == hash(window)
    assert window.delta_indices["b"] == tuple(deltas)
    assert window.to_json()["delta_indices"]["a"] == {"start": 0, "stop": 40, "step": 1}
    assert window.own_streams == ("a", "b", "imu")


def test_plain_window_has_the_json_it_always_had() -> None:
    """States of plain windows keep their four keys; what is new stands there only where used."""
    assert Window(num_steps=4).to_json() == {"num_steps": 4, "stride": 1, "dilation": 1, "pad": "none"}
    assert Window(num_steps=4, history=1).to_json()["history"] == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"history": -1}, r"Window\(history=-1\) is invalid: expected an int of at least 0"),
        ({"history": 4, "num_steps": 4}, r"history=4\) is invalid: expected less than num_steps=4"),
        ({"delta_indices": [1, 2]}, r"delta_indices=\[1, 2\]\) is invalid: expected a dict of stream"),
        ({"delta_indices": {"a": []}}, r"delta_indices\['a'\]\) is empty"),
        ({"delta_indices": {"a": 3}}, r"delta_indices\['a'\]=3\) is invalid: expected a list"),
        ({"delta_indices": {"a": "12"}}, r"delta_indices\['a'\]='12'\) is invalid"),
        ({"delta_indices": {3: [1]}}, r"delta_indices\[3\]\) is invalid: expected a stream's name"),
        ({"delta_indices": {"a": [0, 0.5]}}, r"delta_indices\['a'\]\) holds 0\.5: expected ints"),
        ({"delta_indices": {"a": [True]}}, r"holds True"),
        ({"delta_indices": {"a": [2**31]}}, r"holds 2147483648: expected ints of less than 2\*\*31"),
        ({"delta_indices": {"a": [3, 1]}}, r"delta_indices\['a'\]\) does not rise: 1 follows 3"),
        ({"delta_indices": {"a": [1, 1]}}, r"does not rise: 1 follows 1"),
        ({"delta_timestamps": {"a": [0.1, 0.1]}}, r"delta_timestamps\['a'\]\) does not rise: 0\.1 follows 0\.1"),
        ({"delta_timestamps": {"a": [float("nan")]}}, r"delta_timestamps\['a'\]=nan is invalid: expected seconds, a finite"),
        ({"delta_timestamps": {"a": [float("inf")]}}, r"=inf is invalid"),
        ({"delta_timestamps": {"a": ["1"]}}, r"='1' is invalid: expected seconds"),
        ({"delta_timestamps": {"a": [1e9]}}, r"=1000000000\.0 s is outside float precision: neighbouring values are 1\.19e-07 s apart"),
        ({"delta_timestamps": {"a": [10**9]}}, r"=1000000000 s is outside float precision: expected less than 8388608 s"),
        ({"delta_timestamps": {"a": [np.float32(0.1)]}}, r"outside float precision: neighbouring values are 7\.45e-09 s apart"),
        ({"delta_indices": {"a": [0]}, "delta_timestamps": {"a": [0.0]}}, r"stream 'a' is in delta_indices and in delta_timestamps"),
        ({"delta_tolerance_s": -1.0}, r"delta_tolerance_s=-1\.0\) is invalid: expected seconds >= 0"),
    ],
)  # fmt: skip
def test_window_of_unusable_fields_names_field_and_value(fields: dict[str, Any], message: str) -> None:
    """What cannot be meant is refused when the window is made."""
    with pytest.raises(ConfigError, match=message):
        Window(**fields)


@pytest.mark.parametrize(
    ("seconds", "ns"),
    [
        (1 / 30, 33_333_333),
        (2 / 3, 666_666_667),
        (-0.1, -100_000_000),
        (Fraction(1, 3), 333_333_333),
        (Decimal("0.0000000016"), 2),
        (36_000.000000001, 36_000_000_000_001),
        (np.float32(0.0), 0),
        (np.int64(-3), -3_000_000_000),
    ],
)
def test_seconds_become_nanoseconds_exactly(seconds: Any, ns: int) -> None:
    """Rounding is that of exact fractions, also after ten hours."""
    assert seconds_to_ns("x", seconds) == ns


@given(st.integers(-(2**52), 2**52))
@settings(deadline=None)
def test_whole_nanoseconds_survive_as_float_seconds(ns: int) -> None:
    """Seconds in a window's JSON give back the nanosecond they came from."""
    assert seconds_to_ns("x", ns / 1e9) == ns


@pytest.mark.parametrize("rate", [10.0, 29.97, 30.0, 50.0, 1000 / 33])
def test_seconds_on_the_step_clock_become_its_steps(rate: float) -> None:
    """Each multiple of the period is its step, at any distance up to ten hours."""
    steps = (-int(rate * 36_000), -7, -1, 0, 1, 2, 499, int(rate * 36_000))
    assert steps_of_ns("a", tuple(seconds_to_ns("a", s / rate) for s in steps), rate, 100_000) == steps


@pytest.mark.parametrize(
    ("seconds", "rate", "tolerance_s", "message"),
    [
        ([0.0, 0.05], 30.0, 1e-4, r"\['a'\] holds 0\.05 s, off the step clock of 30 Hz: the nearest step, 2, is at 0\.0666666667 s, 0\.0167 s away; expected at most 0\.0001 s"),
        ([0.0334], 30.0, 1e-5, r"the nearest step, 1, is at 0\.0333333333 s, 6\.67e-05 s away; expected at most 1e-05 s"),
        ([0.0, 0.01], 30.0, 1.0, r"puts 0\.01 s and the delta before it on the same step 0"),
        ([0.0], None, 1e-4, r"the dataset declares no step rate \(got None\). Use delta_indices"),
    ],
)  # fmt: skip
def test_seconds_off_the_step_clock_are_refused_with_value_and_nearest(
    seconds: list[float], rate: float | None, tolerance_s: float, message: str
) -> None:
    """The error names the value, the nearest step and its time, the distance and the tolerance."""
    window = Window(delta_timestamps={"a": seconds}, delta_tolerance_s=tolerance_s)
    with pytest.raises(ConfigError, match=message):
        stream_places(window, spec("a"), Signal(), rate)


@given(RISING, st.integers(1, 40), st.integers(0, 39), st.sampled_from(["none", "edge", "zero"]))
@settings(max_examples=300, deadline=None)
def test_places_outside_the_episode_are_masked_and_clamped(
    deltas: list[int], num_steps: int, anchor: int, pad: Any
) -> None:
    """Each place is anchor + delta, clamped to the episode; the mask says where; pad="none" refuses those outside."""
    window = Window(delta_indices={"action": deltas}, pad=pad)
    places = stream_places(window, spec(), Signal(), 30.0)
    steps = [anchor + d for d in deltas]
    outside = [not 0 <= s < num_steps for s in steps]
    if anchor >= num_steps or (pad == "none" and any(outside)):
        with pytest.raises(
            WindowError, match=rf"window steps \[{steps[0]}, {steps[-1] + 1}\) lie outside .* {num_steps} steps"
        ):
            stepwise_rows(anchor, num_steps, window, places.steps_T)
        return
    rows_T, is_pad_T = stepwise_rows(anchor, num_steps, window, places.steps_T)
    assert rows_T.tolist() == [min(max(s, 0), num_steps - 1) for s in steps]
    assert is_pad_T.tolist() == outside
    assert reach(window, [places]) == (min(0, deltas[0]), max(0, deltas[-1]))


def test_history_counts_among_the_steps_of_a_window() -> None:
    """Five steps of which three are history, two apart, around step 10."""
    window = Window(num_steps=5, history=3, dilation=2)
    assert window_steps(10, window).tolist() == [4, 6, 8, 10, 12]
    assert (window.first_offset, window.span, reach(window, [])) == (-6, 9, (-6, 2))


def test_deltas_of_text_and_seconds_with_intervals_are_refused() -> None:
    """Text stands at the anchor; an interval begins at a step."""
    text = spec("task", modality=Modality.LANGUAGE, encoding="txt", shape=(), dtype="str")
    with pytest.raises(ConfigError, match=r"stream 'task' is text, which a window takes at its anchor"):
        stream_places(Window(delta_indices={"task": [0]}), text, Signal(), 30.0)
    with pytest.raises(ConfigError, match=r"stream 'imu' is asked for with align='interval' and delta_timestamps"):
        stream_places(Window(delta_timestamps={"imu": [0.0]}), spec("imu", "clocked"), Signal(align="interval"), 30.0)
