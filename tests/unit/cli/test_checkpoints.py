"""`trajload checkpoints`: what is listed, found damaged, compared, pinned, removed, exported and copied."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from damaging import flip
from safetensors.torch import load_file

import trajload as tl

# Rich takes ids of styles from the global generator of `random`; layers of torch are initialised from torch's.
pytestmark = pytest.mark.global_rng

Run = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three checkpoints of a growing model: steps 10, 20, 30, with losses."""
    model = torch.nn.Linear(3, 2)
    with tl.Checkpointer(tmp_path / "store", {"model": model, "counts": {"n": 1}}, mode="sync") as ckpt:
        for step in (10, 20, 30):
            with torch.no_grad():
                model.weight[0, 0] = float(step)
            ckpt.save(step, metrics={"loss": 1.0 / step})
    return tmp_path / "store"


def damage(store: Path, step: int) -> None:
    [file] = store.glob(f"gen/*-s{step:09d}-*/r00000/model.safetensors")
    flip(file, -1)


def test_ls_lists_steps_and_pins(trajload: Run, store: Path) -> None:
    """Oldest first, with metrics; under --json as one object."""
    assert trajload("checkpoints", "pin", store, "best", "20").code == 0
    done = trajload("checkpoints", "ls", store)
    assert done.code == 0 and "best" in done.out and "loss=0.05" in done.out
    found = trajload("checkpoints", "ls", store, "--json").json
    assert [commit["step"] for commit in found["commits"]] == [10, 20, 30]
    assert [commit["pins"] for commit in found["commits"]] == [[], ["best"], []]
    assert found["faults"] == []


def test_ls_says_what_it_passed_over(trajload: Run, store: Path) -> None:
    """A torn record is listed below, with exit code 1."""
    record = store / "commits" / "0000000003.json"
    record.write_bytes(record.read_bytes()[:-40])
    done = trajload("checkpoints", "ls", store)
    assert done.code == 1 and "commits/0000000003.json: " in done.out


def test_verify_finds_damage(trajload: Run, store: Path) -> None:
    """Exit code 1 and the file; --quick does not read it; others are whole."""
    assert trajload("checkpoints", "verify", store).code == 0
    damage(store, 20)
    assert trajload("checkpoints", "verify", store).code == 0  # the newest is not the damaged one
    done = trajload("checkpoints", "verify", store, "20")
    assert done.code == 1 and "DAMAGED" in done.out and "model.safetensors" in done.out
    assert trajload("checkpoints", "verify", store, "20", "--quick").code == 0
    found = trajload("checkpoints", "verify", store, "--all", "--json")
    assert found.code == 1 and [one["ok"] for one in found.json["commits"]] == [True, False, True]


def test_diff_names_what_differs(trajload: Run, store: Path) -> None:
    """The tensor, and nothing else; equal commits have exit code 0."""
    done = trajload("checkpoints", "diff", store, "10", "30")
    assert done.code == 1 and "model: weight: values: 1 of 6 elements" in done.out and "counts" not in done.out
    assert trajload("checkpoints", "diff", store, "10", "10").code == 0
    [row] = trajload("checkpoints", "diff", store, "10", "30", "--json").json["differences"]
    assert (row["component"], row["path"], row["rank"]) == ("model", "weight", 0)


def test_gc_removes_old_ones_and_leftovers_and_leaves_pinned_ones(trajload: Run, store: Path) -> None:
    """Also by commit prefix and pin name; while a training writes the store it is refused."""
    (store / "gen" / "0000000009-s000000040-abcd").mkdir()
    for alone in (("--every", "10"), ("--best", "min:loss")):
        done = trajload("checkpoints", "gc", store, *alone)
        assert done.code == 2 and "say with --last" in done.err
    digest = trajload("checkpoints", "ls", store, "--json").json["commits"][0]["digest"]
    assert trajload("checkpoints", "pin", store, "first", digest[:19]).code == 0
    found = trajload("checkpoints", "gc", store, "--last", "1", "--json").json
    assert [commit["step"] for commit in found["removed"]] == [20]
    assert trajload("checkpoints", "unpin", store, "first").code == 0
    assert "removed step 10" in trajload("checkpoints", "gc", store, "--last", "1").out
    assert not (store / "gen" / "0000000009-s000000040-abcd").exists()
    with tl.Checkpointer(store, {"model": {}}) as training:
        training.store  # noqa: B018 - takes the lock
        done = trajload("checkpoints", "gc", store)
        assert done.code == 2 and done.err.startswith("WriterConflictError: ")


def test_gc_says_what_would_go_and_leaves_it(trajload: Run, store: Path) -> None:
    """The dry run names what the run after it removes, and changes nothing."""
    (store / "gen" / "0000000009-s000000040-abcd").mkdir()
    (store / "commits" / ".abcd.tmp").write_bytes(b"x")

    def held() -> dict[str, bytes]:
        files = (path for path in store.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    before = held()
    told = trajload("checkpoints", "gc", store, "--last", "1", "--dry-run", "--json").json
    assert told["dry_run"] and held() == before
    assert [commit["step"] for commit in told["removed"]] == [10, 20]
    assert "would be: removed step 20" in trajload("checkpoints", "gc", store, "--last", "1", "--dry-run").out
    done = trajload("checkpoints", "gc", store, "--last", "1", "--json").json
    assert {**done, "dry_run": True} == told and ".abcd.tmp" in told["swept"][1]
    assert [commit["step"] for commit in trajload("checkpoints", "ls", store, "--json").json["commits"]] == [30]


def test_gc_says_what_would_go_while_a_training_writes(trajload: Run, store: Path) -> None:
    """Who writes is told, and what that one may be writing is not among what would go; what was there before is."""
    old, new = "gen/0000000002-s000000020-abcd", "gen/0000000004-s000000040-abcd"
    with tl.Checkpointer(store, {"model": {}}) as training:
        training.store  # noqa: B018 - takes the lock
        for name in (old, new):
            (store / name).mkdir()
        told = trajload("checkpoints", "gc", store, "--last", "2", "--dry-run", "--json").json
        assert [commit["step"] for commit in told["removed"]] == [10] and old in told["swept"]
        assert new not in told["swept"] and "which is this process writes this store" in told["faults"][0]["what"]
        done = trajload("checkpoints", "gc", store, "--last", "2", "--dry-run")
        assert done.code == 0 and "writes this store: until that ends nothing is removed" in done.out
    told = trajload("checkpoints", "gc", store, "--dry-run", "--json").json
    assert new in told["swept"] and told["faults"] == []


def test_export_copies_extra_files(trajload: Run, store: Path, tmp_path: Path) -> None:
    """Several; a pickle is refused, and leaves no folder."""
    for name in ("tokenizer.json", "LICENSE", "README.bin"):
        (tmp_path / name).write_text("{}")
    extra = ("--extra", tmp_path / "tokenizer.json", "--extra", tmp_path / "LICENSE")
    found = trajload("checkpoints", "export", store, tmp_path / "out", *extra, "--json").json
    assert found["files"] == ["LICENSE", "config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "out" / "LICENSE").read_text() == "{}" and found["uploaded"] is None
    done = trajload("checkpoints", "export", store, tmp_path / "bad", "--extra", tmp_path / "README.bin")
    assert done.code == 2 and "may hold a pickle" in done.err and not (tmp_path / "bad").exists()


def test_exposed_lists_what_was_delivered(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """Train_steps, windows and steps of each source; none where no loader was saved."""
    options: Any = {"window": tl.Window(num_steps=4), "global_batch_size": 4, "streams": ["action"], "num_workers": 0}
    with (
        tl.Loader(demo_dataset, **options) as loader,
        tl.Checkpointer(tmp_path / "s", {"loader": loader, "n": {}}, mode="sync") as ckpt,
    ):
        ckpt.save(0)
        for _ in loader:
            if loader.train_step == 3:
                break
        ckpt.save(3)
    found = trajload("checkpoints", "exposed", tmp_path / "s", "--json").json["exposure"]["loader"]
    assert [segment["train_steps"] for segment in found] == [[[0, 3]]]
    told = trajload("checkpoints", "exposed", tmp_path / "s")
    assert told.code == 0 and "[0, 3)" in told.out and loader.dataset.name in told.out
    assert "nothing that a loader delivered" not in trajload("checkpoints", "exposed", tmp_path / "s", "0").out


def test_export_writes_a_folder_that_safetensors_reads(trajload: Run, store: Path, tmp_path: Path) -> None:
    """Weights of the step that was asked for, beside config.json."""
    (tmp_path / "config.json").write_text('{"model_type": "linear"}')
    done = trajload("checkpoints", "export", store, tmp_path / "out", "20", "--config", tmp_path / "config.json")
    assert done.code == 0
    assert load_file(tmp_path / "out" / "model.safetensors")["weight"][0, 0] == 20.0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "linear"
    assert trajload("checkpoints", "export", store, tmp_path / "bias", "--prefix", "bi").code == 0
    assert set(load_file(tmp_path / "bias" / "model.safetensors")) == {"as"}
    assert trajload("checkpoints", "export", store, tmp_path / "other", "-c", "nothing").code == 2


def test_promote_copies_to_another_store(trajload: Run, store: Path, tmp_path: Path) -> None:
    """Which then verifies by itself."""
    assert trajload("checkpoints", "promote", store, tmp_path / "durable", "10").code == 0
    found = trajload("checkpoints", "verify", tmp_path / "durable", "--json").json
    assert found["ok"] and found["commits"][0]["step"] == 10


@pytest.mark.parametrize("command", ["ls", "verify", "gc"])
def test_store_that_is_not_there_is_an_error_and_is_not_made(trajload: Run, tmp_path: Path, command: str) -> None:
    """One line on stderr, exit code 2."""
    done = trajload("checkpoints", command, tmp_path / "nowhere")
    assert done.code == 2 and "nowhere" in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "nowhere").exists()


def test_commit_that_is_not_there_is_named(trajload: Run, store: Path) -> None:
    """Digest or pin."""
    assert "pin:lost" in trajload("checkpoints", "verify", store, "pin:lost").err.replace("'lost'", "pin:lost")
    assert "ffff" in trajload("checkpoints", "verify", store, "ffff").err
