"""A loader's numbers reach dashboards: flat, as Prometheus text, through OpenTelemetry, into a logger."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trajload.errors import ConfigError, MissingDependencyError
from trajload.interop.metrics import flat_stats, log_stats, observe_loader, prometheus_text
from trajload.loader import Loader
from trajload.spec import Window

SAMPLE = re.compile(
    r'^(trajload_[a-z_]+)(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? ([0-9.e+-]+)$'
)


@pytest.fixture
def loader(demo_dataset: Path) -> Iterator[Loader]:
    arguments: dict[str, Any] = {"window": Window(num_steps=2), "streams": ["cam_front"], "global_batch_size": 4}
    with Loader(demo_dataset, num_workers=1, rank=0, world_size=1, **arguments) as made:
        yield made


def run(loader: Loader, num_batches: int) -> None:
    batches = iter(loader)
    for _ in range(num_batches):
        next(batches)
    batches.close()  # type: ignore[attr-defined]


def test_flat_numbers_are_those_of_stats(loader: Loader) -> None:
    """Every value is a float under a name with the prefix; stages that did nothing are left out."""
    run(loader, 3)
    stats = loader.stats()
    flat = flat_stats(stats, "data/")
    assert all(isinstance(value, float) and name.startswith("data/") for name, value in flat.items())
    assert flat["data/batches"] == 3 and flat["data/train_step"] == 3
    assert flat["data/decode/seconds"] == stats["seconds"]["decode"]
    assert flat["data/decode/p99_ms"] >= flat["data/decode/median_ms"] > 0
    assert "data/transfer/seconds" not in flat and "data/pool/used_bytes" not in flat


def test_fresh_loader_has_numbers_too(loader: Loader) -> None:
    """Before the first batch nothing divides by zero."""
    assert flat_stats(loader.stats())["trajload/windows_per_s"] == 0.0
    assert "trajload_batches_total 0" in prometheus_text(loader.stats())


def test_prometheus_text_is_as_the_format_asks(loader: Loader) -> None:
    """Each family has HELP and TYPE once, in front of its samples; counters end with _total; labels are escaped."""
    run(loader, 2)
    text = prometheus_text(loader.stats(), {"rank": "0", "host": 'a"b\\c\nd'})
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.match(line)
            assert found, line
            family = re.sub(r"_(sum|count)$", "", found[1]) if "stage_seconds" in found[1] else found[1]
            assert family in kinds, line
            assert (kinds[family] == "counter") == family.endswith("_total")
            assert 'rank="0"' in line and r'host="a\"b\\c\nd"' in line
    assert 'trajload_batches_total{rank="0"' in text and 'stage="decode",quantile="0.99"' in text


def test_label_that_prometheus_would_refuse_is_refused(loader: Loader) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match="label 'my-rank' is invalid"):
        prometheus_text(loader.stats(), {"my-rank": "0"})


def test_logger_is_called_after_every_so_many_batches(loader: Loader) -> None:
    """As wandb.log and mlflow.log_metrics are: numbers, and the train_step as `step`; shares are of the last stretch."""
    calls: list[tuple[int, dict[str, float]]] = []
    seen = []
    for batch in log_stats(loader, lambda numbers, step: calls.append((step, numbers)), every=3):
        seen.append(batch.train_step)
        if len(seen) == 8:
            break
    assert seen == list(range(8)), "the batches are the loader's"
    assert [step for step, _ in calls] == [2, 5]
    assert all(0 <= numbers["trajload/wait_share"] <= 1 for _, numbers in calls)
    assert calls[1][1]["trajload/windows_per_s"] > 0


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_logging_never_is_refused_at_once(loader: Loader, every: Any) -> None:
    """Not at the first batch."""
    with pytest.raises(ConfigError, match=f"every={every!r} is invalid"):
        log_stats(loader, print, every=every)


def test_opentelemetry_reads_the_numbers_when_they_are_collected(loader: Loader) -> None:
    """Counters, gauges and stage seconds of the moment of collection, with the labels given."""
    pytest.importorskip(
        "opentelemetry.sdk.metrics", reason="OPENTELEMETRY NOT TESTED: opentelemetry-sdk is not installed"
    )
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe_loader(loader, provider.get_meter("test"), {"rank": "0"})
    run(loader, 2)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    found = {m.name: m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    (batches,) = found["trajload.batches"].data.data_points
    assert batches.value == 2 and dict(batches.attributes) == {"rank": "0"}  # type: ignore[union-attr, arg-type]
    stages = {point.attributes["stage"]: point for point in found["trajload.stage.seconds"].data.data_points}  # type: ignore[index]
    assert stages["decode"].value > 0  # type: ignore[union-attr]
    assert {point.value for point in found["trajload.num_workers"].data.data_points} == {1}  # type: ignore[union-attr]


def test_missing_opentelemetry_is_said_with_the_cure(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the package to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingDependencyError, match="pip install opentelemetry-api"):
        observe_loader(loader)
