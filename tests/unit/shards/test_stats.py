"""Statistics are those NumPy gives over all rows, however the rows came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trajload.errors import ShardCorruptError
from trajload.shards import stats as stats_module
from trajload.shards.stats import DatasetStats, StreamStats, has_stats
from trajload.spec import StreamSpec
from trajload.types import Modality


def spec(name: str, shape: tuple[int, ...], encoding: Any = "npy", dtype: str = "float32") -> StreamSpec:
    return StreamSpec(name=name, modality=Modality.ACTION, encoding=encoding, shape=shape, dtype=dtype)


@settings(deadline=None)
@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 60), st.just(2)), elements=st.floats(-1e6, 1e6)),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_statistics_do_not_depend_on_how_rows_are_cut(rows: np.ndarray, cuts: list[int]) -> None:
    """Any cut into episodes, with or without a flush between, gives NumPy's numbers over all rows."""
    stats = StreamStats((2,))
    for i, part in enumerate(np.split(rows, sorted(c % len(rows) for c in cuts))):
        if len(part):
            stats.add(f"episode-{i}", part)
            if i % 2:
                stats.flush()
    got = stats.to_json()
    assert got["count"] == len(rows) and got["num_quantile_rows"] == len(rows)
    expected = {
        "mean": rows.mean(axis=0),
        "std": rows.std(axis=0),
        "min": rows.min(axis=0),
        "max": rows.max(axis=0),
        "q01": np.quantile(rows, 0.01, axis=0),
        "q99": np.quantile(rows, 0.99, axis=0),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-6, err_msg=name)


def test_values_that_are_not_finite_are_left_out_and_counted() -> None:
    """NaN and infinity change no mean; a component that never is finite is null."""
    stats = StreamStats((2,))
    stats.add("a", np.array([[1.0, np.nan], [3.0, np.nan], [np.inf, np.nan]]))
    got = stats.to_json()
    assert got["mean"] == [2.0, None] and got["max"] == [3.0, None] and got["q99"] == [pytest.approx(2.98), None]
    assert got["num_not_finite"] == [1, 3] and got["count"] == 3
    json.dumps(got, allow_nan=False)


def test_shapes_are_kept() -> None:
    """A scalar stream has numbers, a matrix stream nested lists."""
    scalar, matrix = StreamStats(()), StreamStats((2, 2))
    scalar.add("a", np.array([1, 2, 3]))
    matrix.add("a", np.arange(8).reshape(2, 2, 2))
    assert scalar.to_json()["mean"] == 2.0
    assert matrix.to_json()["min"] == [[0.0, 1.0], [2.0, 3.0]]


def test_a_large_stream_keeps_a_bounded_fair_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its bound the sample has a fixed size, does not depend on order, and its quantiles are near."""
    monkeypatch.setattr(stats_module, "_SAMPLE_ROWS", 2000)
    rows = np.arange(50_000.0).reshape(100, 500)
    forward, backward = StreamStats(()), StreamStats(())
    for i in range(100):
        forward.add(f"{i}", rows[i])
        backward.add(f"{99 - i}", rows[99 - i])
        backward.flush()
    a, b = forward.to_json(), backward.to_json()
    assert a["num_quantile_rows"] == 2000 and a["q01"] == b["q01"] and a["q99"] == b["q99"]
    assert abs(a["q01"] - 500) < 4 * np.sqrt(0.01 * 0.99 / 2000) * 50_000
    assert abs(a["q99"] - 49_500) < 4 * np.sqrt(0.01 * 0.99 / 2000) * 50_000


def test_a_sketch_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Counting through a sketch on disk gives what counting in one go gives."""
    streams = {s.name: s for s in (spec("a", (3,)), spec("b", ()), spec("cam", (8, 8, 3), "png", "uint8"))}
    rng = np.random.Generator(np.random.Philox(2))
    rows = [rng.standard_normal((40, 3)) for _ in range(4)]
    whole, first, second = DatasetStats(streams), DatasetStats(streams), DatasetStats(streams)
    for i, part in enumerate(rows):
        whole.add("a", f"{i}", part)
        (first if i < 2 else second).add("a", f"{i}", part)
        if i == 1:
            (tmp_path / "sketch").write_bytes(first.sketch())
            second.load_sketch(tmp_path / "sketch")
    got, expected = json.loads(second.to_json())["streams"], json.loads(whole.to_json())["streams"]
    assert got.keys() == {"a"}, "streams without rows, and pictures, have no statistics"
    for name, value in expected["a"].items():
        np.testing.assert_allclose(got["a"][name], value, rtol=1e-12, err_msg=name)


def test_a_sketch_of_other_streams_is_refused(tmp_path: Path) -> None:
    """It would add numbers of different things."""
    (tmp_path / "sketch").write_bytes(DatasetStats({"a": spec("a", (3,))}).sketch())
    with pytest.raises(ShardCorruptError, match="is the sketch of other streams"):
        DatasetStats({"b": spec("b", (3,))}).load_sketch(tmp_path / "sketch")


def test_rows_beyond_4096_elements_have_no_statistics() -> None:
    """Latents and depth arrays would make stats.json larger than the data."""
    assert has_stats(spec("x", (64, 64))) and not has_stats(spec("x", (64, 65)))
    assert not has_stats(spec("x", (), "txt", "str"))
