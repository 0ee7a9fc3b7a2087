"""Ctrl-C keeps what was measured: it is told and written, the exit code is 130, and nothing is left running."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trajload as tl

pytestmark = pytest.mark.global_rng  # rich draws numbers for its styles

Run = Callable[..., Any]
QUICK = ("--window", 2, "--batch", 4, "--workers", 1, "-s", "action")


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that lets Ctrl-C come when `where` is called for the `nth` time."""

    def arrange(where: str, nth: int, times: int = 1) -> None:
        module, _, name = where.rpartition(".")
        from importlib import import_module

        parts = module.split(".")
        owner: Any = import_module(".".join(p for p in parts if p == p.lower() and not p.startswith("_")))
        for part in parts:
            if part != part.lower():
                owner = getattr(owner, part)
        real, calls = getattr(owner, name), 0

        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, called)

    return arrange


@pytest.fixture(autouse=True)
def handler_stays() -> Any:
    """Commands put the handler back."""
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def test_bench_tells_of_the_batches_until_then(trajload: Run, demo_dataset: Path, tmp_path: Path, ctrl_c: Any) -> None:
    """Report, trace and page are of the batches that were delivered; the verdict is not tested."""
    ctrl_c("trajload.bench.observe._take", 8)
    trace, page = tmp_path / "t.json", tmp_path / "r.html"
    done = trajload("bench", demo_dataset, *QUICK, "--seconds", 600, "--trace", trace, "--html", page, "--json")
    assert done.code == 130, done.err
    assert done.json["stopped"] and done.json["batches"] == 5, "three to warm up, five measured"
    assert done.json["notes"][0].startswith("Stopped after 5 batches, in ") and done.json["headspace"] is None
    assert done.json["windows_per_s"] > 0 and done.json["bottleneck"]
    assert json.loads(trace.read_bytes())["traceEvents"]
    assert "Stopped after 5 batches" in page.read_text(encoding="utf-8")
    assert {p.name for p in tmp_path.iterdir()} == {"t.json", "r.html"}


@pytest.mark.parametrize(
    ("nth", "times", "words"),
    [(1, 1, "stopped before anything was measured"), (8, 2, "stopped: nothing was written")],
    ids=["warming up", "twice"],
)
def test_bench_ends_at_once_where_nothing_is_kept(
    trajload: Run, demo_dataset: Path, tmp_path: Path, ctrl_c: Any, nth: int, times: int, words: str
) -> None:
    """Nothing is printed and no file is written."""
    ctrl_c("trajload.bench.observe._take", nth, times)
    done = trajload("bench", demo_dataset, *QUICK, "--seconds", 600, "--trace", tmp_path / "t.json", "--json")
    assert (done.code, done.out) == (130, "") and words in done.err
    assert not list(tmp_path.iterdir())


def test_bench_stopped_in_a_run_that_tests_the_verdict_keeps_the_measurement(
    trajload: Run, demo_dataset: Path, ctrl_c: Any
) -> None:
    """It was whole; the run that tests it is left out."""
    ctrl_c("trajload.bench.headspace.fresh_loader", 1)
    done = trajload("bench", demo_dataset, *QUICK, "--seconds", 0.3)
    assert done.code == 130 and "bottleneck: " in done.out
    assert "Stopped while the verdict was tested" in done.out and "With decoding free" not in done.out


def test_sweep_tells_of_the_settings_tried_until_then(trajload: Run, demo_dataset: Path, ctrl_c: Any) -> None:
    """The one that was being tried is left out, and the code is that of what was given or was faster twice."""
    ctrl_c("trajload.bench.sweep.observe", 4)
    done = trajload("bench", demo_dataset, *QUICK, "--sweep", "readers,prefetch", "--seconds", 0.1, "--json")
    assert done.code == 130, done.err
    assert done.json["stopped"] and len(done.json["trials"]) in (2, 3) and "tl.Loader(" in done.json["code"]
    ctrl_c("trajload.bench.sweep.observe", 1)
    done = trajload("bench", demo_dataset, *QUICK, "--sweep", "readers", "--seconds", 0.1)
    assert (done.code, done.out) == (130, "") and "before anything was measured" in done.err


def test_profile_estimates_episodes_that_were_not_measured(
    trajload: Run, mixed: Path, tmp_path: Path, ctrl_c: Any
) -> None:
    """The table is whole and says how many were; one that was there is left alone, unless it is named."""
    shutil.copytree(mixed, tmp_path / "data")
    own = tmp_path / "data" / "costs.json"
    ctrl_c("trajload.costs.profile._Passes.measure", 4)
    done = trajload("profile", tmp_path / "data", "--num-steps", 4, "--json")
    assert done.code == 130, done.err
    assert done.json["stopped"] and (done.json["num_measured"], done.json["num_wanted"]) == (4, 12)
    table = tl.CostTable.load(own)
    assert table.info["episodes_measured"] == 4 and min(table.row_ns["cam_small"]) >= 0
    assert max(table.row_ns["cam_small"]) > 0
    before = own.read_bytes()
    ctrl_c("trajload.costs.profile._Passes.measure", 2)
    done = trajload("profile", tmp_path / "data", "--num-steps", 4)
    assert done.code == 130 and own.read_bytes() == before
    assert "Stopped early: 2 of 12 episodes were measured" in done.out and "as it was: pass --out" in done.out


def test_tuning_recommends_from_what_was_measured(trajload: Run, mixed: Path, tmp_path: Path, ctrl_c: Any) -> None:
    """Settings that were measured count; without any nothing is said or written."""
    options = (
        "--codecs",
        "h264",
        "--gops",
        "1,2,4",
        "--frames",
        16,
        "--episodes",
        1,
        "--num-steps",
        4,
        "--min-psnr",
        1,
    )
    out = tmp_path / "e.json"
    ctrl_c("trajload.convert.tune._Tuning.candidate", 2)
    done = trajload("tune-encoding", mixed, *options, "--out", out, "--json")
    assert done.code == 130, done.err
    (found,) = done.json["streams"]
    assert done.json["stopped"] == "1 of 6 settings were measured" and len(found["candidates"]) == 1
    assert out.exists() == (found["best"] is not None) and found["why"]
    out.unlink(missing_ok=True)
    ctrl_c("trajload.convert.tune._Tuning.candidate", 1)
    done = trajload("tune-encoding", mixed, *options, "--out", out)
    assert (done.code, done.out) == (130, "") and not out.exists()


def test_rebalance_says_how_to_go_on(trajload: Run, mixed: Path, tmp_path: Path, ctrl_c: Any) -> None:
    """And does."""
    command = ("rebalance", mixed, tmp_path / "even", "--shards", 3, "--by", "steps", "--no-measure")
    ctrl_c("trajload.convert.rebalance.stored_record", 8)
    done = trajload(*command)
    assert done.code == 130 and "the same command goes on" in done.err
    done = trajload(*command)
    assert done.code == 0 and "of an earlier run were whole and kept" in done.out
