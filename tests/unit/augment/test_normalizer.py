"""Normalisation: the documented formulas, there and back, and what cannot be normalised."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trajload as tl
from trajload.augment.measure import measure_stats
from trajload.augment.normalizer import Normalizer, scale_of
from trajload.errors import ConfigError
from trajload.rng import key_rng

# Millionths: squares of values near the end of float64 underflow, which no signal's do.
ELEMENTS = st.floats(-1e6, 1e6).map(lambda v: round(v, 6))
METHODS = ("mean_std", "min_max", "quantiles")


def stats_of(rows_ND: np.ndarray) -> dict[str, Any]:
    q01, q99 = np.quantile(rows_ND, [0.01, 0.99], axis=0)
    of = {
        "mean": rows_ND.mean(0),
        "std": rows_ND.std(0),
        "min": rows_ND.min(0),
        "max": rows_ND.max(0),
        "q01": q01,
        "q99": q99,
    }
    return {k: v.tolist() for k, v in of.items()}


def normalizer_of(rows_ND: np.ndarray, method: Any) -> Normalizer:
    return Normalizer({"x": scale_of(stats_of(rows_ND), method, rows_ND.shape[1:])}, data_digest="d")


@pytest.mark.parametrize("method", METHODS)
def test_values_are_the_documented_formula(method: str) -> None:
    """Mean 0 and deviation 1; least and greatest to -1 and 1; quantiles to -1 and 1 without clipping."""
    rows = key_rng(0, "test").standard_normal((500, 3)) * [1, 10, 0.01] + [5, 0, -3]
    s = {k: np.array(v) for k, v in stats_of(rows).items()}
    got = normalizer_of(rows, method).normalize(rows, "x")
    expected = {
        "mean_std": (rows - s["mean"]) / s["std"],
        "min_max": 2 * (rows - s["min"]) / (s["max"] - s["min"]) - 1,
        "quantiles": 2 * (rows - s["q01"]) / (s["q99"] - s["q01"]) - 1,
    }[method]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    if method == "min_max":
        assert got.min(0).tolist() == [-1, -1, -1] and got.max(0).tolist() == [1, 1, 1]


@settings(max_examples=200, deadline=None)
@given(
    rows=hnp.arrays(np.float64, st.tuples(st.integers(2, 20), st.integers(1, 4)), elements=ELEMENTS),
    method=st.sampled_from(METHODS),
)
def test_denormalize_undoes_normalize(rows: np.ndarray, method: str) -> None:
    """To float32 rounding of the normalised value, times the scale; constant components come back exactly."""
    normalizer = normalizer_of(rows, method)
    there = normalizer.normalize(rows, "x")
    assert np.isfinite(there).all()
    back = normalizer.denormalize(there.astype(np.float64), "x")
    scale = np.array(normalizer.streams["x"].scale)
    tolerance = np.abs(there) * scale * 2.0**-23 + np.abs(rows) * 2.0**-50 + 1e-300
    assert (np.abs(back - rows) <= tolerance).all()
    still = rows.min(0) == rows.max(0)
    assert (there[:, still] == 0).all() and (back[:, still] == rows[:, still]).all()


def test_components_that_do_not_move_are_only_shifted() -> None:
    """Constant, coinciding quantiles, and never finite."""
    rows = np.zeros((1000, 2))
    rows[:, 0] = 4.25
    rows[0, 1] = 8  # quantiles of the second are 0 and 0: it is scaled by its range
    for method in METHODS:
        assert (normalizer_of(rows, method).normalize(rows, "x")[:, 0] == 0).all()
    assert sorted(set(normalizer_of(rows, "quantiles").normalize(rows, "x")[:, 1].tolist())) == [-1, 1]
    never = {k: [None, 1.0] for k in ("mean", "std", "min", "max", "q01", "q99")}
    scale = scale_of(never, "mean_std", (2,))
    assert (scale.center[0], scale.scale[0]) == (0.0, 1.0)


def test_tensors_arrays_and_windows_get_the_same_bytes() -> None:
    """float32 of the same float64 arithmetic; torch keeps its device and any leading axes."""
    rows = key_rng(1, "test").standard_normal((60, 3)).astype(np.float32)
    normalizer = normalizer_of(rows, "quantiles")
    array = normalizer.normalize(rows, "x")
    tensor = normalizer.normalize(torch.from_numpy(rows).reshape(5, 12, 3), "x")
    assert tensor.dtype == torch.float32
    assert tensor.reshape(60, 3).numpy().tobytes() == array.tobytes()
    window = normalizer({"x": rows, "x_is_pad": np.zeros(60, bool)}, key_rng(0, "test"))
    assert window["x"].tobytes() == array.tobytes()
    back = normalizer.denormalize(tensor, "x")
    assert back.dtype == torch.float32
    np.testing.assert_allclose(back.reshape(60, 3).numpy(), rows, atol=1e-5)
    assert normalizer.denormalize(tensor.double(), "x").dtype == torch.float64


def test_masked_zeros_stay_zeros() -> None:
    """A step without data does not become minus the mean; a repeated edge is normalised."""
    normalizer = normalizer_of(key_rng(1, "test").standard_normal((60, 3)) + 7, "mean_std")
    x = torch.ones(2, 4, 3)
    x[0, 3] = 0
    pad = torch.zeros(2, 4, dtype=torch.bool)
    pad[0, 3] = pad[1, 3] = True
    batch = tl.Batch({"x": x, "x_is_pad": pad, "x_is_missing": torch.zeros(2, dtype=torch.bool)}, train_step=0)
    got = normalizer.normalize(batch)
    assert isinstance(got, tl.Batch) and got.train_step == 0
    assert (got["x"][0, 3] == 0).all() and (got["x"][1, 3] == got["x"][1, 0]).all() and (got["x"][1, 3] < -3).all()
    assert torch.equal(batch["x"], x), "the batch itself is not changed"
    assert torch.allclose(normalizer.denormalize(got)["x"], x, atol=1e-5)


def test_normalizer_of_a_dataset_takes_stored_statistics(dataset: tl.Dataset) -> None:
    """Stored where there are any, and equal to those measured."""
    methods: Any = {"action": "mean_std", "proprioception": "quantiles"}
    stored = tl.Normalizer.from_dataset(dataset, methods)
    assert stored.origin == {"action": "stored", "proprioception": "stored"}
    assert stored.data_digest == dataset.digest
    measured = tl.Normalizer.from_dataset(dataset, methods, stats="measured")
    assert measured.origin == {"action": "measured", "proprioception": "measured"}
    assert measured.digest == stored.digest
    assert measure_stats(dataset, ["action"])["action"] == dataset.stats()["action"]


def test_missing_statistics_are_measured_or_refused(dataset: tl.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources without stats.json, or without quantiles, are read once."""
    full = dict(dataset.stats())
    without = {"action": {k: v for k, v in full["action"].items() if k not in ("q01", "q99")}}
    monkeypatch.setattr(dataset, "stats", lambda: without)
    made = tl.Normalizer.from_dataset(dataset, {"action": "quantiles"})
    assert made.origin == {"action": "measured"}
    assert tl.Normalizer.from_dataset(dataset, {"action": "min_max"}).origin == {"action": "stored"}
    with pytest.raises(ConfigError, match=r"stores no q01, q99, min, max of stream 'action'.*stats='auto'"):
        tl.Normalizer.from_dataset(dataset, {"action": "quantiles"}, stats="stored")


def test_json_carries_every_bit(dataset: tl.Dataset) -> None:
    """Saved beside a model, it scales exactly as before."""
    made = tl.Normalizer.from_dataset(dataset, {"action": "mean_std"})
    again = tl.Normalizer.from_json(json.loads(json.dumps(made.to_json())))
    assert again.digest == made.digest and again.data_digest == made.data_digest
    assert again.config_json() == made.config_json()
    x = np.array([[0.1, 0.7]])[:, : made.streams["action"].shape[0]]
    assert again.normalize(x, "action").tobytes() == made.normalize(x, "action").tobytes()


def test_loader_delivers_normalised_streams(dataset: tl.Dataset) -> None:
    """As a transform and on the batch: the same bytes, padding and misses included; the state refuses other numbers."""
    made = tl.Normalizer.from_dataset(dataset, {"action": "mean_std", "proprioception": "min_max"})
    for pad in ("edge", "zero"):
        common: Any = {
            "window": tl.Window(num_steps=9, pad=pad), "global_batch_size": 8, "seed": 1, "rank": 0, "world_size": 1,
            "num_workers": 0, "streams": ["action", "proprioception"], "order": "sequential",
        }  # fmt: skip
        with tl.Loader(dataset, **common) as plain, tl.Loader(dataset, transforms=[made], **common) as loader:
            last = plain.num_windows // 8 - 1
            for k in (0, last):
                assert loader.batch_at(k).digest() == made.normalize(plain.batch_at(k)).digest()
                assert loader.batch_at(k)["proprioception"].dtype == torch.float32
            if pad == "zero":
                mask = plain.batch_at(last)["action_is_pad"]
                assert mask.any() and (loader.batch_at(last)["action"][mask] == 0).all()
            other = tl.Normalizer.from_dataset(dataset, {"action": "min_max", "proprioception": "min_max"})
            with (
                tl.Loader(dataset, transforms=[other], **common) as changed,
                pytest.raises(tl.errors.ResumeError, match=r"transforms\[0\]\.methods\.action: saved 'mean_std'"),
            ):
                changed.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: tl.Normalizer.from_dataset(d, {}), r"methods=\{\} is invalid"),
        (
            lambda d: tl.Normalizer.from_dataset(d, {"action": "zscore"}),
            r"method 'zscore' of stream 'action' is unknown",
        ),
        (lambda d: tl.Normalizer.from_dataset(d, {"act": "min_max"}), r"stream 'act' is unknown"),
        (
            lambda d: tl.Normalizer.from_dataset(d, {"cam_front": "min_max"}),
            r"'cam_front' cannot be normalised: got mp4",
        ),
        (lambda d: tl.Normalizer.from_dataset(d, {"action": "min_max"}, stats="new"), r"stats='new' is unknown"),
        (lambda d: tl.Normalizer.from_json({"streams": {"x": {}}}), r"this is no normalizer"),
        (lambda d: measure_stats(d, ["language"]), r"stream 'language' has no statistics"),
        (lambda d: normalizer_of(np.eye(3), "min_max").normalize(np.eye(2), "x"), r"are \(2, 2\): expected .* \(3,\)"),
        (
            lambda d: normalizer_of(np.eye(3), "min_max").normalize(np.eye(3), "y"),
            r"stream 'y' has no statistics here: got those of 'x'",
        ),
        (lambda d: normalizer_of(np.eye(3), "min_max").normalize(np.eye(3)), r"which stream is this tensor of"),
        (lambda d: normalizer_of(np.eye(3), "min_max").denormalize({"a": 1}), r"batch has no stream 'x': it has 'a'"),
        (lambda d: normalizer_of(np.eye(3), "min_max").denormalize({"x": 1}, "x"), r"stream='x' goes with a tensor"),
        (lambda d: normalizer_of(np.eye(3), "min_max").bind({}), r"names stream 'x', which is not in the batch"),
        (
            lambda d: normalizer_of(np.eye(3), "min_max").out_layout({"x": ((2,), "f4")}),
            r"shape \(3,\) for stream 'x': got .*\(2,\)",
        ),
    ],
)
def test_what_cannot_be_normalised_is_named(dataset: tl.Dataset, make: Any, message: str) -> None:
    """Each refusal names the stream, what it got and what it expected."""
    with pytest.raises(ConfigError, match=message):
        make(dataset)
