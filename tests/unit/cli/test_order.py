"""`trajload order`: the windows of a train_step, and the scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trajload as tl

# Rich, which draws tables, takes ids of styles from the global generator of `random`.
pytestmark = pytest.mark.global_rng

Run = Callable[..., Any]


def test_order_lists_the_windows_that_the_loader_takes(trajload: Run, demo_dataset: Path) -> None:
    """Rows, blocks and lanes of a train_step far out, as JSON and as a table."""
    arguments = ["--train-step", 1234, "--batch-size", 6, "--seed", 5, "--order", "interleaved", "--block-windows", 8]
    got = trajload("order", demo_dataset, *arguments, "--json").json
    with tl.Loader(
        demo_dataset, window=tl.Window(num_steps=16), global_batch_size=6, seed=5, num_workers=0, streams=["action"],
        order=tl.Interleaved(block_windows=8),
    ) as loader:  # fmt: skip
        refs = loader.batch_at(1234).refs
    assert got["order"] == "interleaved/3"
    assert [(r["window_id"], r["start"], r["stop"], r["position"]) for r in got["rows"]] == [
        (ref.window_id, ref.start, ref.stop, ref.position) for ref in refs
    ]
    assert all(0 <= r["lane"] < 24 for r in got["rows"])
    shown = trajload("order", demo_dataset, *arguments)
    assert shown.code == 0 and "lane" in shown.out and f" {refs[0].window_id} " in shown.out


def test_order_quality_scores_against_uniform(trajload: Run, demo_dataset: Path) -> None:
    """The same numbers for machines and people."""
    arguments = ["--quality", "--order", "interleaved", "--batch-size", 4, "--num-steps", 8, "--num-batches", 20]
    got = trajload("order", demo_dataset, *arguments, "--json").json
    assert got["got"]["distinct_blocks"] == 4.0
    assert got["num_lanes"] == 12 and set(got["ranks_per_block"]) == {"2", "3", "4"}
    shown = trajload("order", demo_dataset, *arguments)
    assert shown.code == 0 and "uniform" in shown.out and f"{got['got']['distinct_episodes']:.2f}" in shown.out
    assert trajload("order", demo_dataset, "--quality", "--json").json["load"] is None


def test_replay_of_a_run_on_some_episodes_asks_for_them(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """A state has a digest of its episodes only: it never replays other ones, and takes the list beside it."""
    order, streams = tl.Interleaved(block_windows=5), ["action"]
    with tl.Loader(
        demo_dataset, window=tl.Window(num_steps=4), global_batch_size=3, order=order, episodes=[0, 2], streams=streams,
        num_workers=0,
    ) as loader:  # fmt: skip
        loader.seek(21)
        digest, state = loader.batch_at(21).digest(), loader.state_dict()
    (tmp_path / "state.json").write_text(json.dumps(state))
    done = trajload("replay", demo_dataset, "--state", tmp_path / "state.json", "--no-sheet")
    assert done.code == 2 and "holds only a digest of its episodes" in done.err
    (tmp_path / "c.json").write_text(json.dumps({**state["config"], "episodes": [0, 2]}))
    files = ["--state", tmp_path / "state.json", "--config", tmp_path / "c.json"]
    assert trajload("replay", demo_dataset, *files, "--no-sheet", "--json").json["digest"] == digest


def test_order_of_an_unknown_name_lists_the_known_ones(trajload: Run, demo_dataset: Path) -> None:
    """The mistake and the cure in one line."""
    done = trajload("order", demo_dataset, "--order", "interleaved/9")
    assert done.code == 2 and "order='interleaved/9' is unknown" in done.err and "'interleaved/1'" in done.err
