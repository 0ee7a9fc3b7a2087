"""`profile`, `rebalance`, `tune-encoding` and `convert --reencode`: what they write and say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trajload as tl

pytestmark = pytest.mark.global_rng  # rich draws numbers for its styles

Run = Callable[..., Any]


@pytest.fixture
def data(mixed: Path, tmp_path: Path) -> Path:
    """A copy that commands may write into."""
    shutil.copytree(mixed, tmp_path / "data")
    return tmp_path / "data"


def test_profile_writes_costs_beside_the_dataset(trajload: Run, data: Path) -> None:
    """The table serves a loader; kinds, shards and their spread are told."""
    done = trajload("profile", data, "--num-steps", 8, "--repeats", 1, "-s", "cam_large", "-s", "cam_small")
    assert done.code == 0, done.err
    assert "cam_large" in done.out and "48" in done.out
    assert "the dearest of 3 shards costs" in done.out and "trajload rebalance" in done.out
    table = tl.CostTable.load(data / "costs.json")
    assert set(table.row_ns) == {"cam_large", "cam_small"}
    assert tl.verify(data).problems == []


def test_profile_json_holds_figures_and_machine(trajload: Run, data: Path, tmp_path: Path) -> None:
    """One object; sizes asked for stand in the table."""
    out = tmp_path / "c.json"
    done = trajload(
        "profile", data, "--out", out, "--repeats", 1, "--max-episodes", 3, "--size", "24x32", "--json",
    )  # fmt: skip
    assert done.code == 0 and not (data / "costs.json").exists()
    assert done.json["num_measured"] == 3 and len(done.json["shards"]) == 3
    assert done.json["machine"]["processor"] and done.json["costs"] == str(out)
    assert tl.CostTable.load(out).info["sizes"]["cam_large"] == [24, 32]


def test_rebalance_says_predicted_and_measured_spread(trajload: Run, data: Path, tmp_path: Path) -> None:
    """Before and after; a dry run promises the same and writes nothing."""
    assert trajload("profile", data, "--num-steps", 8, "--repeats", 1).code == 0
    options = ("--shards", 3, "--num-steps", 8)
    dry = trajload("rebalance", data, tmp_path / "even", *options, "--dry-run")
    assert dry.code == 0 and dry.out.startswith("would write") and not (tmp_path / "even").exists()
    done = trajload("rebalance", data, tmp_path / "even", *options)
    assert done.code == 0, done.err
    assert "predicted, by cost: the dearest shard was" in done.out
    assert "measured decode cost: the dearest shard was" in done.out
    assert "found finished: " in trajload("rebalance", data, tmp_path / "even", *options, "--no-measure").out
    dry = trajload("rebalance", data, tmp_path / "even", "--shards", 2, "--num-steps", 8, "--dry-run")
    assert "already holds a dataset, which is not this one rebalanced so: choose another folder" in dry.out
    again = trajload("rebalance", data, tmp_path / "even", *options, "--no-measure", "--json").json
    assert again["num_shards_kept"] == 3 and again["measured"] is None
    assert again["predicted"]["after"]["max_over_mean"] < again["predicted"]["before"]["max_over_mean"]
    assert again["digest"] == tl.open(tmp_path / "even").digest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shards", 40), "num_shards=40 is invalid: expected 1 to 12"),
        (("--shards", 2, "--by", "size"), "by='size' is unknown"),
        (("--shards", 2, "--costs", "nowhere.json"), "'nowhere.json' does not exist"),
    ],
)
def test_rebalance_refuses_what_it_cannot_do(
    trajload: Run, mixed: Path, tmp_path: Path, options: tuple[Any, ...], message: str
) -> None:
    """In one line; nothing that looks like a dataset is left."""
    done = trajload("rebalance", mixed, tmp_path / "out", *options)
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_tuning_is_applied_by_convert(trajload: Run, mixed_data: Any, tmp_path: Path) -> None:
    """From a dataset with far keyframes to a file of settings, to a dataset with near ones."""
    sizes = {"cam_small": (48, 64), "cam_large": (96, 128)}
    data = mixed_data.write_mixed(
        tmp_path / "far", parts=[mixed_data.Part("cam_large", 100, 2)], sizes=sizes, num_frames=100
    )
    options = (
        "--codecs",
        "h264",
        "--gops",
        "5,40",
        "--frames",
        40,
        "--min-psnr",
        25,
        "--max-growth",
        20,
        "--num-steps",
        8,
    )
    done = trajload("tune-encoding", data, *options, "--out", tmp_path / "encoding.json")
    assert done.code == 0, done.err
    assert "recommended for cam_large: h264, GOP 5" in done.out
    assert f"apply it: trajload convert {data} OUT --reencode {tmp_path / 'encoding.json'}" in done.out
    assert "pass --out encoding.json" in trajload("tune-encoding", data, *options).out
    done = trajload("convert", data, tmp_path / "near", "--reencode", tmp_path / "encoding.json", "--json")
    assert done.code == 0 and done.json["num_videos_encoded"] == 2
    healthy = trajload("doctor", tmp_path / "near", "--num-steps", 8, "--json").json
    assert not [f for f in healthy["findings"] if f["code"] == "long-gop"]
    costly = trajload("doctor", data, "--num-steps", 8, "--json").json
    (finding,) = [f for f in costly["findings"] if f["code"] == "long-gop"]
    assert "a random window of 8 frames" in finding["message"]


def test_tuning_without_gain_writes_no_file(trajload: Run, mixed: Path, tmp_path: Path) -> None:
    """And says why."""
    options = ("--codecs", "h264", "--gops", "8", "--frames", 16, "--episodes", 1, "-s", "cam_small", "--min-psnr", 90)
    done = trajload("tune-encoding", mixed, *options, "--out", tmp_path / "encoding.json")
    assert done.code == 0 and not (tmp_path / "encoding.json").exists()
    assert "leave cam_small as it is: no setting has at least 90 dB" in done.out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("tune-encoding", "--gops", "4,x"), "--gops '4,x' is invalid"),
        (("convert", "OUT", "--gop", "4", "--reencode", "e.json"), "pass one of them"),
        (("convert", "OUT"), "nothing to convert, unless"),
        (
            ("profile", "--out", "/absent/costs.json"),
            "--out '/absent/costs.json' cannot be written: the folder '/absent'",
        ),
        (
            ("tune-encoding", "--out", "/absent/e.json"),
            "--out '/absent/e.json' cannot be written: the folder '/absent'",
        ),
    ],
)
def test_contradictions_are_told(
    trajload: Run, mixed: Path, tmp_path: Path, command: tuple[str, ...], message: str
) -> None:
    """Before anything is written."""
    name, *rest = command
    done = trajload(name, mixed, *(tmp_path / "out" if r == "OUT" else r for r in rest))
    assert done.code == 2 and message in done.err
    assert not (tmp_path / "out").exists()
