"""Sharded state through torch's own planner and writer: FSDP2 on gloo, resumed with any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from damaging import flip

from trajload.checkpoint.diff import diff_parts
from trajload.checkpoint.exporting import export
from trajload.checkpoint.restoring import restore
from trajload.checkpoint.store import Store
from trajload.errors import CheckpointMismatchError, ConfigError

pytestmark = pytest.mark.multiproc


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_fsdp_training_resumes_bit_for_bit(jobs: Any, mode: str) -> None:
    """Parameters and moments, put together, after the resume and after two more updates; the counter too."""
    whole = jobs.run("shard", 2, 5, 10, mode, store="whole")
    assert not whole[0]["raised"], whole[0]["raised"]
    jobs.run("shard", 2, 3, 10, mode)
    told = jobs.run("shard", 2, 5, 10, mode)
    for answer in told:
        assert not answer["raised"], answer["raised"]
        assert (answer["step"], answer["updates"]) == (3, 5)
        assert answer["resumed"] == whole[0]["after 3"]
        assert answer["after 5"] == whole[0]["after 5"]


def test_fsdp_state_is_resharded_for_other_numbers_of_ranks(jobs: Any) -> None:
    """Two ranks save, three, one and two load: the same tensors, also where rows do not divide."""
    saved = jobs.run("shard", 2, 3, 7, "sync")
    for world in (3, 1, 2):
        for answer in jobs.run("shard", world, 3, 7, "sync"):
            assert not answer["raised"], answer["raised"]
            assert (answer["step"], answer["resumed"]) == (3, saved[0]["after 3"])


def test_sharded_tensors_come_back_wherever_they_stand(jobs: Any) -> None:
    """In dicts, lists, by themselves, given by functions, and as ShardedTensor: saved by two ranks, loaded by three, in place."""
    full = [[2.0 * row, 2.0 * row + 1.0] for row in range(7)]
    for answer in jobs.run("pieces", 2, 1.0):
        assert not answer["raised"], answer["raised"]
    told = jobs.run("pieces", 3, 0.0)
    for answer in told:
        assert not answer["raised"], answer["raised"]
        assert answer["whole"] == [full] * 4 and answer["same"] == [True] * 3
        assert answer["beside"] == [[1.0] * 3, 1]
    assert [row for answer in told for row in answer["rows"]] == full
    for answer in jobs.run("pieces", 2, 0.0, 4):
        assert "in_dict/beside: saved float32 [3], here float32 [4]" in answer["raised"]
        assert answer["whole"][0] == [[0.0, 0.0]] * 7, "changed, though it does not fit"


def test_each_rank_writes_its_pieces_and_nothing_is_pickled(jobs: Any, tmp_path: Path) -> None:
    """Pieces of different ranks in different files; torch's own index, a pickle, is not there; all is verified."""
    jobs.run("shard", 2, 1, 64, "sync")
    store = Store(tmp_path / "store", create=False)
    [commit] = store.commits()
    parts = [store.part(commit, rank) for rank in range(2)]
    assert all({"dcp/__0_0.distcp", "sharded.json"} <= set(part.files) for part in parts)
    assert not list(tmp_path.rglob(".metadata"))
    assert store.verify(commit) == []
    with pytest.raises(ConfigError, match="component 'model' is sharded over ranks"):
        export(parts[0], tmp_path / "exported")
    with pytest.raises(CheckpointMismatchError, match="a Checkpointer loads it"):
        restore({"model": torch.nn.Identity()}, parts[0])


def test_diff_compares_pieces(jobs: Any, tmp_path: Path) -> None:
    """Each that moved is named by its tensor and place; a commit is equal to itself."""
    jobs.run("shard", 2, 2, 64, "sync")
    store = Store(tmp_path / "store", create=False)
    first, second = store.commits()
    lines = [str(line) for line in diff_parts(store.part(first, 1), store.part(second, 1))]
    assert "model: 0.weight: values: piece of [32, 6] at [32, 0]" in lines
    assert diff_parts(store.part(first, 1), store.part(first, 1)) == []


def test_flipped_bit_of_a_piece_is_noticed_by_all_ranks(jobs: Any, tmp_path: Path) -> None:
    """torch's reader takes it; the digest does not, and everybody steps back."""
    saved = jobs.run("shard", 2, 3, 10, "sync")
    [file] = (tmp_path / "store").glob("gen/*-s000000003-*/r00001/dcp/*.distcp")
    flip(file, file.stat().st_size // 2)
    for answer in jobs.run("shard", 2, 2, 10, "sync"):
        assert not answer["raised"], answer["raised"]
        assert (answer["step"], answer["resumed"]) == (2, saved[0]["after 2"])


def test_sharded_model_of_another_shape_is_refused_with_both_shapes(jobs: Any) -> None:
    """And nothing is changed."""
    jobs.run("shard", 2, 1, 10, "sync")
    for answer in jobs.run("shard", 2, 1, 12, "sync"):
        assert answer["raised"].startswith("CheckpointMismatchError: ")
        assert "model/0.weight: size saved [10, 6], here [12, 6]" in answer["raised"]


def test_sharded_and_whole_models_do_not_take_each_others_checkpoints(jobs: Any) -> None:
    """Said by name, before anything is changed."""
    jobs.run("shard", 1, 1, 10, "sync", False, store="whole")
    [answer] = jobs.run("shard", 1, 1, 10, "sync", True, store="whole")
    assert answer["raised"].startswith(
        "CheckpointMismatchError: components ['model'] are sharded here and were saved whole"
    )
    jobs.run("shard", 1, 1, 10, "sync", True, store="cut")
    [answer] = jobs.run("shard", 1, 1, 10, "sync", False, store="cut")
    assert answer["raised"].startswith("CheckpointMismatchError: ") and "0.weight: not sharded here" in answer["raised"]
