"""Two reports side by side: what differs is named, and what is noise is called the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trajload.bench.compare import compare, load_report
from trajload.errors import ConfigError

REPORT: dict[str, Any] = {
    "format": "trajload-bench/2",
    "dataset": "d",
    "order": "shuffled/1",
    "num_workers": 2,
    "windows_per_s": 100.0,
    "windows_per_s_min": 95.0,
    "windows_per_s_max": 105.0,
    "wait_share": 0.5,
    "wait_p99_ms": 20.0,
    "peak_rss_mb": 300.0,
    "bottleneck": "decode",
    "stages": {"decode": {"median_ms": 4.0}, "read": {"median_ms": None}},
}


def words(**changed: Any) -> dict[str, str]:
    return {line.name: line.word for line in compare(REPORT, {**REPORT, **changed})}


def test_a_report_is_the_same_as_itself() -> None:
    """Nothing differs."""
    assert set(words().values()) == {"same"}


def test_settings_that_differ_come_first() -> None:
    """Only those that differ are told of."""
    lines = compare(REPORT, {**REPORT, "num_workers": 8})
    assert (lines[0].name, lines[0].a, lines[0].b, lines[0].word) == ("num_workers", 2, 8, "differs")
    assert "order" not in {line.name for line in lines}


def test_speed_counts_where_the_slices_do_not_overlap() -> None:
    """112 beside slices of 95 to 105 is faster only if its own slices lie above."""
    assert words(windows_per_s=112.0, windows_per_s_min=104.0, windows_per_s_max=120.0)["windows/s"] == "same"
    assert words(windows_per_s=112.0, windows_per_s_min=110.0, windows_per_s_max=120.0)["windows/s"] == "better"
    assert words(windows_per_s=80.0, windows_per_s_min=70.0, windows_per_s_max=90.0)["windows/s"] == "worse"


def test_other_machines_and_shares_are_told_of() -> None:
    """Figures of two machines, or of two mixtures, are no figures of two settings."""
    machine = {"cpus": 2, "versions": {"torch": "2.6", "av": "17"}}
    sources = [{"name": "sim", "share": 0.5}, {"name": "real", "share": 0.5}]
    other = {
        "machine": {**machine, "cpus": 64, "versions": {"torch": "2.7", "av": "17"}},
        "sources": [{"name": "sim", "share": 1.0}],
    }
    lines = compare({**REPORT, "machine": machine, "sources": sources}, {**REPORT, **other})
    differs = {line.name: (line.a, line.b) for line in lines if line.word == "differs"}
    assert differs == {
        "cpus": (2, 64),
        "version of torch": ("2.6", "2.7"),
        "share of sim": (0.5, 1.0),
        "share of real": (0.5, None),
    }


def test_less_is_better_for_waits_memory_and_stages() -> None:
    """Signs are right."""
    got = words(wait_share=0.2, peak_rss_mb=600.0, stages={"decode": {"median_ms": 2.0}}, bottleneck="consumer")
    assert got["consumer waits, share"] == "better" and got["peak memory, MB"] == "worse"
    assert got["decode, median ms"] == "better" and got["bottleneck"] == "differs"


def test_only_reports_are_read(tmp_path: Path) -> None:
    """Anything else is refused by name."""
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(REPORT))
    assert load_report(good)["dataset"] == "d"
    bad.write_text('{"a": 1}')
    with pytest.raises(ConfigError, match=r"bad.json' is no report"):
        load_report(bad)
    for changed, message in (
        ({"format": "trajload-bench/1"}, "of another version of trajload: expected 'trajload-bench/2'"),
        ({"windows_per_s": "fast"}, "damaged: 'windows_per_s' is 'fast', expected a number"),
        ({"windows_per_s_min": None}, "damaged: 'windows_per_s_min' is None"),
    ):
        bad.write_text(json.dumps({**REPORT, **changed}))
        with pytest.raises(ConfigError, match=message):
            load_report(bad)
    with pytest.raises(ConfigError, match=r"absent.json' does not exist"):
        load_report(tmp_path / "absent.json")
