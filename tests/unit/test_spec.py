"""What users and manifests may declare, and what is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajload.errors import ConfigError, ManifestError
from trajload.spec import (
    Image,
    Signal,
    StreamRequest,
    StreamSpec,
    UniformClock,
    Window,
    check_request,
    default_request,
)
from trajload.types import Modality


def spec_of(**changes: Any) -> StreamSpec:
    values: dict[str, Any] = {
        "name": "cam",
        "modality": Modality.RGB,
        "encoding": "mp4",
        "shape": (48, 64, 3),
        "dtype": "uint8",
    }
    return StreamSpec(**{**values, **changes})


SIGNAL = {"name": "action", "modality": Modality.ACTION, "encoding": "npy", "shape": (2,), "dtype": "float32"}

# ---- StreamSpec ----


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clock": "clocked", "rate_hz": 29.97, "units": "mm"},
        {**SIGNAL, "names": ("x", "y")},
        {"name": "observation.images.top", "encoding": "png", "dtype": "uint16", "modality": Modality.DEPTH},
        {"name": "task", "modality": Modality.LANGUAGE, "encoding": "txt", "shape": (), "dtype": "str"},
    ],
)
def test_stream_spec_survives_json(changes: dict[str, Any]) -> None:
    """What a manifest says of a stream comes back equal, through JSON text."""
    spec = spec_of(**changes)
    assert StreamSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, r"stream name '' is invalid"),
        ({"name": 3}, r"stream name 3 is invalid"),
        ({"name": "a/b"}, r"stream name 'a/b' is invalid"),
        ({"name": " cam"}, r"stream name ' cam' is invalid"),
        ({"name": "epoch"}, r"stream name 'epoch' is reserved"),
        ({"name": "row_is_pad"}, r"stream name 'row_is_pad' is reserved"),
        ({"name": "cam_is_pad"}, r"stream name 'cam_is_pad' is reserved"),
        ({"name": "cam_is_missing"}, r"stream name 'cam_is_missing' is reserved"),
        ({"encoding": "gif"}, r"encoding of stream 'cam'='gif' is unknown: expected one of 'npy'"),
        ({"clock": "wall"}, r"clock of stream 'cam'='wall' is unknown: expected one of 'stepwise', 'clocked'"),
        ({"shape": (48, 64)}, r"shape of stream 'cam' is \(48, 64\): expected \(H, W, C\)"),
        ({"dtype": "float33"}, r"dtype of stream 'cam' is 'float33'"),
    ],
)
def test_stream_spec_with_an_unusable_field_names_it(changes: dict[str, Any], message: str) -> None:
    """Each field is checked when the spec is made."""
    with pytest.raises(ConfigError, match=message):
        spec_of(**changes)


@pytest.mark.parametrize("field", ["name", "modality", "encoding", "shape", "dtype"])
def test_stream_spec_of_a_manifest_without_a_field_names_stream_and_field(field: str) -> None:
    """A manifest that lacks a field is a ManifestError, not a KeyError."""
    obj = spec_of().to_json()
    del obj[field]
    stream = "?" if field == "name" else "cam"
    with pytest.raises(
        ManifestError,
        match=rf"stream '\{stream}' of the manifest lacks field '{field}'"
        if stream == "?"
        else rf"stream 'cam' of the manifest lacks field '{field}'",
    ):
        StreamSpec.from_json(obj)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modality": "smell"}, "'smell' is not a valid Modality"),
        ({"shape": 3}, "not iterable"),
        ({"encoding": "gif"}, "'gif' is unknown"),
        ({"shape": ["a", 1, 2]}, "expected a tuple of ints"),
    ],
)
def test_stream_spec_of_a_manifest_with_an_unusable_field_is_a_manifest_error(
    changes: dict[str, Any], message: str
) -> None:
    """Whatever is wrong with a field, the error says which stream of the manifest."""
    with pytest.raises(ManifestError, match=rf"stream 'cam' of the manifest is unusable: .*{message}"):
        StreamSpec.from_json({**spec_of().to_json(), **changes})


@pytest.mark.parametrize(
    ("changes", "claims"),
    [
        ({}, (True, True, False)),
        ({"encoding": "jpg"}, (False, True, False)),
        (SIGNAL, (False, False, False)),
        ({"modality": Modality.LANGUAGE, "encoding": "txt", "shape": (), "dtype": "str"}, (False, False, True)),
        ({"modality": Modality.METADATA, "encoding": "json", "shape": (), "dtype": "json"}, (False, False, True)),
    ],
)
def test_stream_spec_knows_video_picture_and_text(changes: dict[str, Any], claims: tuple[bool, bool, bool]) -> None:
    """How a stream is delivered follows from encoding and dtype."""
    spec = spec_of(**changes)
    assert (spec.is_video, spec.is_picture, spec.is_text) == claims


# ---- Window ----


@given(st.integers(1, 50), st.integers(1, 50))
@settings(deadline=None)
def test_window_span_counts_first_and_last_step(num_steps: int, dilation: int) -> None:
    """The span is the number of steps from the first to the last taken, both counted."""
    steps = range(0, num_steps * dilation, dilation)
    assert Window(num_steps=num_steps, dilation=dilation).span == steps[-1] - steps[0] + 1


@pytest.mark.parametrize("field", ["num_steps", "stride", "dilation"])
def test_window_beyond_what_int64_can_number_is_refused(field: str) -> None:
    """Positions are int64: the largest steps and dilation still multiply into it."""
    with pytest.raises(
        ConfigError, match=rf"Window\({field}=2147483648\) is too large: expected less than 2147483648\."
    ):
        Window(**{"num_steps": 2, field: 2**31})  # type: ignore[arg-type]
    assert Window(num_steps=2**31 - 1, dilation=2**31 - 1).span < 2**63


@pytest.mark.parametrize("field", ["num_steps", "stride", "dilation"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "4", True, None])
def test_window_of_a_value_that_is_no_count_names_it(field: str, value: object) -> None:
    """Counts are integers of at least 1."""
    with pytest.raises(ConfigError, match=rf"Window\({field}={value!r}\) is invalid"):
        Window(**{"num_steps": 2, field: value})  # type: ignore[arg-type]


def test_window_takes_numpy_counts_and_refuses_unknown_padding() -> None:
    """NumPy integers become plain ones; padding is one of three words."""
    window = Window(num_steps=np.int64(3))  # type: ignore[arg-type]
    assert json.dumps(window.to_json()) == '{"num_steps": 3, "stride": 1, "dilation": 1, "pad": "none"}'
    with pytest.raises(ConfigError, match=r"Window\(pad\)='wrap' is unknown: expected one of 'none', 'edge', 'zero'"):
        Window(num_steps=1, pad="wrap")  # type: ignore[arg-type]


# ---- requests ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Image(size=(0, 4)), r"Image\(size=\(0, 4\)\) is invalid"),
        (lambda: Image(size=(4,)), r"Image\(size=\(4,\)\) is invalid"),
        (lambda: Image(size=(4.0, 4)), r"Image\(size=\(4\.0, 4\)\) is invalid"),
        (lambda: Image(align="cubic"), r"align='cubic' is unknown"),
        (lambda: Signal(on_miss="skip"), r"on_miss='skip' is unknown: expected one of 'error', 'mask'"),
        (lambda: Signal(tolerance_s=-0.1), r"tolerance_s=-0\.1 is invalid"),
        (lambda: Signal(tolerance_s=float("nan")), r"tolerance_s=nan is invalid"),
    ],
)
def test_request_with_an_unusable_value_names_it(make: Any, message: str) -> None:
    """Sizes, rules and tolerances are checked when the request is made."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_request_json_holds_every_setting() -> None:
    """Two requests that differ anywhere differ in JSON."""
    assert json.loads(json.dumps(Image(size=(8, 9), align="previous", tolerance_s=0.5, on_miss="error").to_json())) == {
        "align": "previous",
        "tolerance_s": 0.5,
        "on_miss": "error",
        "size": [8, 9],
    }
    assert Signal().to_json() == {"align": "nearest", "tolerance_s": None, "on_miss": "mask"}


def test_default_request_fits_the_stream() -> None:
    """Pictures are asked for as Image, everything else as Signal, and both pass the check."""
    for spec, kind in [(spec_of(), Image), (spec_of(**SIGNAL), Signal)]:
        request = default_request(spec)
        assert type(request) is kind
        assert check_request(spec, request) is request


@pytest.mark.parametrize(
    ("changes", "request_", "message"),
    [
        (SIGNAL, Image(), r"streams\['action'\] asks for an Image, but the stream is stored as 'npy'"),
        ({}, Signal(), r"streams\['cam'\] asks for a Signal, but the stream is stored as 'mp4'"),
        ({}, "image", r"streams\['cam'\]='image' is unusable"),
    ],
)
def test_check_request_of_the_wrong_kind_names_stream_and_cure(
    changes: dict[str, Any], request_: StreamRequest, message: str
) -> None:
    """A request that does not fit the stream is refused before any I/O."""
    with pytest.raises(ConfigError, match=message):
        check_request(spec_of(**changes), request_)


# ---- UniformClock ----


def exact_ns(rate_hz: Fraction, start_ns: int, step: int) -> int:
    """Return the time of a step by exact fractions, rounded half up."""
    return start_ns + int((step / rate_hz * 10**9 + Fraction(1, 2)) // 1)


@pytest.mark.parametrize("start_ns", [0, -5, 1_700_000_000 * 10**9])
@pytest.mark.parametrize(
    "rate", [Fraction(30000, 1001), Fraction(30), Fraction(24000, 1001), Fraction(1, 7), Fraction(10**6)]
)
def test_uniform_clock_does_not_drift_over_ten_hours(rate: Fraction, start_ns: int) -> None:
    """Every step of ten hours (thinned for fast clocks) is at the nanosecond exact fractions give."""
    last = int(rate * 36_000)
    steps = np.unique(np.linspace(0, last, 40_000).astype(np.int64))
    got = UniformClock(rate_hz=rate, start_ns=start_ns).times_ns(steps)
    assert got.dtype == np.int64
    assert got.tolist() == [exact_ns(rate, start_ns, s) for s in steps.tolist()]
    assert abs(int(got[-1]) - start_ns - int(last / rate * 10**9)) <= 1


@given(
    rate=st.one_of(st.fractions(min_value=Fraction(1, 100), max_value=10**6), st.floats(0.01, 1e5).map(Fraction)),
    step=st.integers(0, 10**7),
)
@settings(deadline=None)
def test_uniform_clock_is_exact_for_any_rate_even_one_made_from_a_float(rate: Fraction, step: int) -> None:
    """A rate with terms of 50 bits, such as Fraction(29.97), overflows nothing."""
    got = UniformClock(rate_hz=rate).times_ns(np.array([[0, step]]))
    assert got.tolist() == [[0, exact_ns(rate, 0, step)]]


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(-30), float("nan")])
def test_uniform_clock_of_no_rate_is_refused(rate: Any) -> None:
    """A clock ticks forward."""
    with pytest.raises(ConfigError, match=r"step rate .* is invalid: expected a rate above 0 Hz"):
        UniformClock(rate_hz=rate)


@pytest.mark.parametrize("three", [3, 3.0, np.int64(3), np.float64(3)], ids=lambda v: type(v).__name__)
def test_a_tolerance_is_the_same_setting_whatever_number_it_was_written_as(three: Any) -> None:
    """It stands in a state as JSON, and 3 is not another setting than 3.0."""
    assert json.dumps(Signal(tolerance_s=three).to_json()) == json.dumps(Signal(tolerance_s=3.0).to_json())
    windows = [Window(num_steps=1, delta_timestamps={"a": [0.0]}, delta_tolerance_s=t) for t in (three, 3.0)]
    assert json.dumps(windows[0].to_json()) == json.dumps(windows[1].to_json())
