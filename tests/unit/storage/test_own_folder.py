"""Datasets are written into folders of their own: files of others are neither touched nor joined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.convert import convert
from trajload.convert.rebalance import rebalance
from trajload.convert.rewrite import PLAN_NAME
from trajload.demo.job import run
from trajload.errors import ConfigError
from trajload.shards.video_encode import VideoEncode
from trajload.storage.own_folder import check_own_folder
from trajload.types import Modality

SIGNAL = tl.StreamSpec(name="x", modality=Modality.ACTION, encoding="npy", shape=(2,), dtype="float32", rate_hz=10.0)


def write(folder: Path, **more: Any) -> None:
    with tl.Writer(folder, streams=[SIGNAL], step_rate_hz=10, **more) as writer:
        writer.add_episode({"x": np.zeros((4, 2), np.float32)}, terminated=False)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], None),
        ([".git", "mine"], None),
        (["mine", "yours"], r"out='.*' is not empty: it holds 'yours', and no run left that there"),
        (["a", "b", "c", "d", "e"], r"it holds 'a', 'b', 'c' and 2 more"),
    ],
)
def test_what_is_no_runs_is_named(tmp_path: Path, names: list[str], message: str | None) -> None:
    """Hidden names are nobody's business, an absent folder is empty."""
    for name in names:
        (tmp_path / name).touch()
    if message is None:
        check_own_folder(tmp_path, argument="out", may_hold=lambda name: name == "mine")
    else:
        with pytest.raises(ConfigError, match=message):
            check_own_folder(tmp_path, argument="out", may_hold=lambda name: name == "mine")
    check_own_folder(tmp_path / "absent", argument="out", may_hold=lambda name: False)


WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "Writer": lambda data, out: write(out),
    "rebalance": lambda data, out: rebalance(data, out, num_shards=1, by="steps", measure=False),
    "reencode": lambda data, out: convert(data, out, reencode=VideoEncode(codec="h264", gop=4)),
    "demo": lambda data, out: run(out, num_episodes=1, train_steps=12),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_with_files_of_others_is_refused_and_left_alone(demo_dataset: Path, tmp_path: Path, name: str) -> None:
    """Before anything is made in it."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"is not empty: it holds 'thesis.tex'.*Give a new folder"):
        WRITERS[name](demo_dataset, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_dry_run_says_that_the_folder_would_be_refused(demo_dataset: Path, tmp_path: Path) -> None:
    """In time to choose another."""
    (tmp_path / "thesis.tex").touch()
    report = rebalance(demo_dataset, tmp_path, num_shards=1, by="steps", dry_run=True)
    assert any("it holds 'thesis.tex'" in note for note in report.notes)


def test_leftovers_of_a_killed_writer_are_no_hindrance(tmp_path: Path) -> None:
    """Unfinished shards go; finished ones, which may be someone's, are passed over; statistics are written anew."""
    (tmp_path / "shards").mkdir()
    for name in ("shards/000000.tar", "shards/000001.tar.tmp", "stats.json", "manifest.json.tmp", ".gitattributes"):
        (tmp_path / name).write_bytes(b"left")
    write(tmp_path)
    assert (tmp_path / "shards/000000.tar").read_bytes() == b"left"
    assert (tmp_path / "shards/000001.tar").is_file() and not (tmp_path / "shards/000001.tar.tmp").exists()
    assert tl.open(tmp_path).num_episodes == 1
    (tmp_path / "README.md").touch()
    write(tmp_path, append=True)
    assert tl.open(tmp_path).num_episodes == 2


def test_files_of_others_among_shards_are_refused(tmp_path: Path) -> None:
    """A folder 'shards' may be anybody's."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "of-pottery.csv").touch()
    with pytest.raises(ConfigError, match=r"it holds 'of-pottery.csv'"):
        write(tmp_path)


def test_a_writer_does_not_join_an_unfinished_rewrite(demo_dataset: Path, tmp_path: Path) -> None:
    """Its plan belongs to another command."""
    (tmp_path / PLAN_NAME).write_text("{}")
    with pytest.raises(ConfigError, match=f"it holds '{PLAN_NAME}'"):
        write(tmp_path)


def test_demo_removes_only_runs_of_its_own(tmp_path: Path) -> None:
    """A folder that happens to be called like one of a run stays, with all that is in it."""
    (tmp_path / "run-a").mkdir()
    (tmp_path / "run-a" / "results.csv").write_text("1,2,3")
    with pytest.raises(ConfigError, match=r"holds a folder 'run-a' that no demo made"):
        run(tmp_path, num_episodes=1, train_steps=12)
    assert (tmp_path / "run-a" / "results.csv").read_text() == "1,2,3"
