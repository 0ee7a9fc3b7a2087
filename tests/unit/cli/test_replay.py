"""`trajload replay`: any batch of any run, made again from options, a configuration or a state."""

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

ARGUMENTS = ["--num-steps", 4, "--batch-size", 3, "--seed", 11, "--size", "32x48", "-s", "cam_front", "-s", "action"]


def same_loader(dataset: Path) -> tl.Loader:
    """The loader that ARGUMENTS describe, built in Python."""
    return tl.Loader(
        dataset,
        window=tl.Window(num_steps=4),
        global_batch_size=3,
        seed=11,
        num_workers=0,
        streams={"cam_front": tl.Image(size=(32, 48)), "action": None},
    )


def test_replay_shows_exactly_the_batch_of_the_loader(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """Digest and refs are those of `batch_at`, and the sheet is written."""
    out = tmp_path / "step.png"
    got = trajload("replay", demo_dataset, "--train-step", 17, *ARGUMENTS, "-o", out, "--json").json
    with same_loader(demo_dataset) as loader:
        batch = loader.batch_at(17)
    assert got["digest"] == batch.digest()
    assert [row["window_id"] for row in got["rows"]] == batch["window_id"].tolist()
    assert got["keys"]["cam_front"] == "uint8 (3, 4, 3, 32, 48)"
    assert got["png"] == str(out) and out.is_file()


def test_replay_from_a_state_needs_no_other_option(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """The state knows configuration and cursor; inside a checkpoint's JSON it is found, too."""
    with same_loader(demo_dataset) as loader:
        loader.seek(9)
        (tmp_path / "loader.json").write_text(json.dumps(loader.state_dict()))
        (tmp_path / "whole.json").write_text(json.dumps({"loader": loader.state_dict(), "epoch": 3}))
        next_one, earlier = loader.batch_at(9).digest(), loader.batch_at(2).digest()
    for name in ("loader.json", "whole.json"):
        got = trajload("replay", demo_dataset, "--state", tmp_path / name, "--no-sheet", "--json").json
        assert (got["train_step"], got["digest"], got["png"]) == (9, next_one, None)
    got = trajload(
        "replay", demo_dataset, "--state", tmp_path / "loader.json", "--train-step", 2, "--no-sheet", "--json"
    )
    assert got.json["digest"] == earlier


def test_replay_from_a_state_knows_deltas_and_alignment(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """Streams with steps, times and clocks of their own come out of the state as they went in."""
    window = tl.Window(
        delta_indices={"action": range(20)},
        delta_timestamps={"proprioception": [-0.1, 0]},
        history=1,
        num_steps=3,
        pad="edge",
    )
    streams = {"action": None, "proprioception": tl.Signal(align="linear", age=True, offset_s=0.002, on_miss="drop")}
    with tl.Loader(demo_dataset, window=window, streams=streams, global_batch_size=3, num_workers=0) as loader:
        (tmp_path / "loader.json").write_text(json.dumps(loader.state_dict()))
        expected = loader.batch_at(0)
    got = trajload("replay", demo_dataset, "--state", tmp_path / "loader.json", "--no-sheet", "--json").json
    assert (got["digest"], got["keys"]["action"]) == (expected.digest(), "float32 (3, 20, 2)")
    state = {"config": {**loader.state_dict()["config"], "window": {"digest": "0" * 64}}}
    (tmp_path / "long.json").write_text(json.dumps(state))
    done = trajload("replay", demo_dataset, "--state", tmp_path / "long.json")
    assert (done.code, "holds only a digest of its long window" in done.err) == (2, True)


def test_replay_of_one_rank_shows_its_rows(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """Two ranks share the global batch."""
    rows = []
    for rank in range(2):
        done = trajload(
            "replay",
            demo_dataset,
            "--train-step",
            3,
            "--batch-size",
            4,
            "-s",
            "action",
            "--rank",
            rank,
            "--world-size",
            2,
            "--no-sheet",
            "--json",
        )
        rows += [row["position"] for row in done.json["rows"]]
    assert rows == [12, 13, 14, 15]


def test_replay_by_configuration_file(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """A configuration as the state has it, with streams as a list."""
    (tmp_path / "c.json").write_text(
        json.dumps({"window": {"num_steps": 4}, "global_batch_size": 3, "seed": 11, "streams": ["action"]})
    )
    got = trajload(
        "replay", demo_dataset, "--train-step", 17, "--config", tmp_path / "c.json", "--no-sheet", "--json"
    ).json
    with same_loader(demo_dataset) as loader:
        assert [row["window_id"] for row in got["rows"]] == loader.batch_at(17)["window_id"].tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds a list: expected a JSON object"),
        ("{}", "lacks 'window'"),
        ('{"window": {"steps": 3}, "global_batch_size": 2}', "is no loader configuration"),
        ('{"window": {"num_steps": 0}, "global_batch_size": 2}', "num_steps=0"),
    ],
)
def test_replay_refuses_a_bad_configuration(
    trajload: Run, demo_dataset: Path, tmp_path: Path, content: str, message: str
) -> None:
    """Each mistake is named, with the file."""
    (tmp_path / "c.json").write_text(content)
    done = trajload("replay", demo_dataset, "--train-step", 0, "--config", tmp_path / "c.json")
    assert done.code == 2 and message in done.err


@pytest.mark.parametrize("config", [5, None, [1], {"window": 5, "global_batch_size": 2}, {"window": {}, "streams": 5}])
def test_replay_refuses_a_state_with_garbage_for_configuration(
    trajload: Run, demo_dataset: Path, tmp_path: Path, config: object
) -> None:
    """Any JSON may stand in a file; none of it is taken for a bug of trajload."""
    (tmp_path / "s.json").write_text(json.dumps({"config": config}))
    done = trajload("replay", demo_dataset, "--state", tmp_path / "s.json", "--json")
    assert done.code == 2 and done.json["error"]["type"] == "ConfigError"
    assert f"state {str(tmp_path / 's.json')!r}" in done.json["error"]["message"]


def test_replay_refuses_the_state_of_another_dataset(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """A state that does not fit is an error that names the field."""
    with same_loader(demo_dataset) as loader:
        state = loader.state_dict()
    state["manifests"] = [[0, "0" * 64]]
    (tmp_path / "s.json").write_text(json.dumps(state))
    done = trajload("replay", demo_dataset, "--state", tmp_path / "s.json")
    assert done.code == 2 and done.err.startswith("ResumeError") and "0" * 12 in done.err
    assert "another dataset or version" in done.err


def test_replay_of_a_partial_download_needs_skip_missing(trajload: Run, real_data: Path, tmp_path: Path) -> None:
    """What was downloaded in part can be looked at, by choice."""
    root = real_data / "lerobot_v2" / "starvla_sim_pick_place"
    arguments = [
        "replay",
        root,
        "--train-step",
        1,
        "--num-steps",
        2,
        "--batch-size",
        2,
        "-s",
        "state.joints",
        "--no-sheet",
    ]
    done = trajload(*arguments)
    assert done.code == 2 and "3 of 4 episodes lack theirs" in done.err
    done = trajload(*arguments, "--skip-missing", "--json")
    assert done.code == 0
    assert [row["episode_key"] for row in done.json["rows"]] == ["episode_000002"] * 2
