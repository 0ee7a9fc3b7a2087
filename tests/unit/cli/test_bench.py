"""`trajload bench` measures, says what holds the loader up, and writes what was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from busy import Others

import trajload as tl
from trajload.bench.verdict import LIMITS
from trajload.cli.output import check_file_can_be_written

Run = Callable[..., Any]
QUICK = ("--seconds", 0.4, "--window", 2, "--batch", 4, "--workers", 1, "-s", "cam_front")


def test_bench_measures_and_names_a_bottleneck(trajload: Run, demo_dataset: Path) -> None:
    """Numbers are there and agree with each other; the machine is described."""
    for seconds in (0.4, 0.8, 1.6):  # longer where others had the CPUs
        others = Others()
        got = trajload("bench", demo_dataset, "--seconds", seconds, *QUICK[2:], "--json").json
        if got["wait_share"] > 0.5 or not others.disturbed:
            break
    assert got["windows_per_s_min"] <= got["windows_per_s"] <= got["windows_per_s_max"]
    assert got["frames_per_s"] == pytest.approx(2 * got["windows_per_s"])
    assert got["bottleneck"] in LIMITS and 0.5 < got["wait_share"] <= 1
    assert 1 <= got["distinct_episodes_per_batch"] <= 3
    assert got["machine"]["versions"]["torch"]
    assert got["stages"]["decode"]["count"] >= 4 * got["batches"] and got["decoded_per_delivered"] >= 1
    assert got["bytes_per_window"] >= got["gop_bytes_per_window"] > 0, "whole groups of pictures are read"
    assert got["headspace"]["decode_cached"] > 0 and got["verdict"]["sentence"] == got["advice"]


def test_bench_with_a_slow_consumer_calls_it_the_bottleneck(trajload: Run, demo_dataset: Path) -> None:
    """A training step of 100 ms keeps a loader of small rows waiting, not the other way round."""
    options = ("--num-steps", 2, "--batch-size", 1, "--consumer-ms", 100, "-s", "action", "--no-headspace")
    for seconds in (1.0, 2.0, 4.0, 8.0):  # longer where others had the CPUs
        others = Others()
        done = trajload("bench", demo_dataset, "--seconds", seconds, *options)
        if "bottleneck: consumer" in done.out or not others.disturbed:
            break
    assert done.code == 0 and "bottleneck: consumer" in done.out
    assert "With decoding free" not in done.out


def test_bench_for_people_says_all_that_counts(trajload: Run, demo_dataset: Path) -> None:
    """Wait, speed, first batch, bytes, frames, queue, order, memory, stages, verdict, and what testing it showed."""
    out = trajload("bench", demo_dataset, *QUICK).out
    for text in ("consumer waits", "first batch", "GOPs touched", "decoded", "batches ready", "order score", "peak"):
        assert text in out
    assert re.search(r"decode +\d+ +[0-9.]+ ms +[0-9.]+ ms +\d+%", out)
    assert "With decoding free it is" in out


def test_bench_tries_its_advice(trajload: Run, demo_dataset: Path) -> None:
    """The change is applied and measured, if there is one."""
    got = trajload(
        "bench", demo_dataset, *QUICK[:-4], "--workers", 0, "-s", "cam_front", "--try", "--no-headspace", "--json"
    )
    assert got.json["tried"]["change"] == got.json["verdict"]["change"] != {}
    assert got.json["tried"]["gain"] > 0


def test_bench_writes_trace_and_report(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """Both files are there, and stdout stays JSON."""
    trace, page = tmp_path / "trace.json", tmp_path / "report.html"
    done = trajload("bench", demo_dataset, *QUICK, "--no-headspace", "--trace", trace, "--html", page, "--json")
    assert done.json["bottleneck"] in LIMITS
    events = json.loads(trace.read_bytes())["traceEvents"]
    assert {event["name"] for event in events} >= {"decode", "read", "wait"}
    assert 'id="timeline"' in page.read_text() and "ui.perfetto.dev" in done.err


def test_bench_tells_what_it_measured_where_a_file_cannot_be_written(
    trajload: Run, demo_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full by then costs the file, not the measurement; stdout stays one JSON object."""

    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("trajload.bench.html.write_html", refuse)
    done = trajload("bench", demo_dataset, *QUICK, "--no-headspace", "--html", tmp_path / "r.html", "--json")
    assert done.code == 2 and done.json["windows_per_s"] > 0
    assert "report.html cannot be written: No space left on device. What was measured follows." in done.err


def test_files_are_tried_before_anything_is_measured(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """Rights do not tell: root may write everywhere, but not here. What is tried leaves nothing behind."""
    done = trajload("bench", demo_dataset, *QUICK, "--html", "/proc/report.html")
    assert done.code == 2 and "--html '/proc/report.html' cannot be written: the folder '/proc' refuses it" in done.err
    check_file_can_be_written(str(tmp_path / "r.html"), "--html")
    assert not list(tmp_path.iterdir())


def test_bench_stops_after_so_many_batches(trajload: Run, demo_dataset: Path) -> None:
    """Whatever time there would be."""
    got = trajload("bench", demo_dataset, *QUICK[2:], "--seconds", 60, "--batches", 7, "--no-headspace", "--json").json
    assert got["batches"] in (7, 8, 9) and got["seconds"] < 60


def test_bench_compares_two_outputs(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """As a table for people, and as JSON."""
    report = trajload("bench", demo_dataset, *QUICK, "--no-headspace", "--json").out
    one, two = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text(report)
    two.write_text(json.dumps({**json.loads(report), "num_workers": 8}))
    out = trajload("bench", "--compare", one, two).out
    assert "num_workers" in out and "differs" in out and "windows/s" in out
    lines = trajload("bench", "--compare", one, two, "--json").json["lines"]
    assert lines[0] == {"name": "num_workers", "a": 1, "b": 8, "ratio": None, "word": "differs"}


def test_bench_sweep_prints_the_best_setting_as_code(trajload: Run, demo_dataset: Path) -> None:
    """What is printed is Python that names the dataset."""
    done = trajload("bench", demo_dataset, "--sweep", "readers", "--seconds", 0.2, *QUICK[2:])
    assert "num_readers=16" in done.out
    code = done.out[done.out.index("import trajload as tl") :]
    compile(code, "code", "exec")
    assert "streams=['cam_front']," in code
    assert repr(str(demo_dataset)) in code and "window=tl.Window(num_steps=2)" in code
    found = trajload("bench", demo_dataset, "--sweep", "readers", "--seconds", 0.2, *QUICK[2:], "--json").json
    assert {trial["axis"] for trial in found["trials"]} == {"readers"} and "tl.Loader(" in found["code"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "bench needs a DATASET, or --compare"),
        (["DATASET", "--compare", "a", "b"], "--compare reads two files and measures nothing"),
        (["DATASET", "--sweep", "speed"], "'speed' is unusable"),
        (["DATASET", "--sweep", ","], "expected some of workers, prefetch"),
        (["DATASET", "DATASET", "--weights", "2"], "a number above 0 for each of 2 datasets"),
        (["DATASET", "DATASET", "--weights", "2,x"], "expected numbers, for instance 2,1"),
        (["DATASET", "DATASET", "-s", "nope"], "stream 'nope' is unknown: the sources"),
        (["DATASET", "DATASET", "--transform", "Normalizer"], "give each source of a mixture its own"),
        (["DATASET", "--html", "/absent/report.html"], "the folder '/absent' does not exist"),
        (["DATASET", "--trace", "/"], "is a folder: expected the name of a file"),
        (["--compare", "a", "b"], "does not exist"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_bench_refuses_what_it_cannot_do(trajload: Run, demo_dataset: Path, options: list[str], message: str) -> None:
    """Exit code 2, and what to do."""
    arguments = [demo_dataset if option == "DATASET" else option for option in options]
    done = trajload("bench", *arguments, "--json")
    assert done.code == 2 and message in done.err


def test_bench_of_several_datasets_measures_their_mixture(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """Shares are those of the weights, each source tells what it costs, and episodes of two sources are two episodes."""
    page = tmp_path / "report.html"
    # Until each source was met often, which takes a slow machine a while.
    options = ("--seconds", 2.5, "--batches", 50, "--window", 2, "--batch", 6, "-s", "cam_front", "--weights", "2,1")
    got = trajload("bench", demo_dataset, demo_dataset, *options, "--workers", 1, "--html", page, "--json").json
    assert [told["share"] for told in got["sources"]] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert got["dataset"] == " + ".join(told["name"] for told in got["sources"])
    assert sum(told["decode_share"] for told in got["sources"]) == pytest.approx(1)
    assert all(told["decode_ms"] > 0 for told in got["sources"])
    assert got["frames_per_s"] == pytest.approx(2 * got["windows_per_s"]) and got["order"] == "shuffled/1"
    steps_E = tl.open(demo_dataset).num_steps_E
    share_E = (steps_E - 1) / (steps_E - 1).sum()
    uniform = sum(float((1 - (1 - share_E) ** rows).sum()) for rows in (4, 2))
    assert got["distinct_episodes_uniform"] == pytest.approx(uniform)
    assert got["distinct_episodes_per_batch"] == pytest.approx(uniform, rel=0.3)
    assert 0 < got["order_score"] <= 1 and got["gop_bytes_per_window"] > 0
    assert 'id="sources"' in page.read_text(encoding="utf-8")


def test_sweep_of_a_mixture_prints_code_that_makes_it(trajload: Run, demo_dataset: Path) -> None:
    """With the same shares, exactly."""
    options = ("--weights", "2,1", "--sweep", "readers", "--seconds", 0.1, "--window", 2, "--batch", 6, "-s", "action")
    code = trajload("bench", demo_dataset, demo_dataset, *options, "--workers", 1, "--json").json["code"]
    scope: dict[str, Any] = {}
    exec(code, scope)
    with scope["loader"] as loader:
        assert loader.stats()["shares"] == {
            name: pytest.approx(s) for name, s in zip(loader.dataset, (2 / 3, 1 / 3), strict=True)
        }
