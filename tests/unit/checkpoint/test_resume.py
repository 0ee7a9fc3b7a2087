"""Which checkpoint a run goes on from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from by_path import load

import trajload as tl
from trajload.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    WriterConflictError,
)

trainings = load(Path(__file__).with_name("trainings.py"))
Training, damage, saved_at = trainings.Training, trainings.damage, trainings.saved_at

pytestmark = pytest.mark.global_rng  # layers of torch are initialised from its global generator


def test_damaged_checkpoint_is_passed_over_and_reported(tmp_path: Path) -> None:
    """The newest whole one is taken, with a fault for each newer one; the sentence for the log names them."""
    one = saved_at(tmp_path, 10, 20, 30)
    damage(tmp_path, 30)
    damage(tmp_path, 20)
    with one.checkpointer(tmp_path) as ckpt:
        report = ckpt.resume()
    assert report.step == 10 and one.counts == {"updates": 1}
    assert [fault.seq for fault in report.fell_back_from] == [3, 2]
    assert "passed over commit 3" in str(report) and "model.safetensors" in str(report)
    assert report.to_json()["fell_back_from"][0]["seq"] == 3


def test_damage_is_an_error_where_the_user_wants_it(tmp_path: Path) -> None:
    """on_bad='error' and an explicit choice do not fall back, and leave the training alone."""
    one = saved_at(tmp_path, 10, 20)
    damage(tmp_path, 20)
    one.update()
    with one.checkpointer(tmp_path, on_bad="error") as ckpt:
        with pytest.raises(CheckpointCorruptError, match=r"model\.safetensors.*on_bad='fallback'"):
            ckpt.resume()
        with pytest.raises(CheckpointCorruptError, match=r"model\.safetensors.*at="):
            ckpt.resume(at=19)
        assert one.counts == {"updates": 3}
        assert ckpt.resume(at=14).step == 10


def test_all_damaged_is_a_fresh_start_that_says_so_or_an_error(tmp_path: Path) -> None:
    """resume='auto' starts anew and says why; 'on' raises."""
    one = saved_at(tmp_path, 10)
    damage(tmp_path, 10)
    with one.checkpointer(tmp_path) as ckpt:
        report = ckpt.resume()
        assert report.fresh and report.next_step == 0 and "none of its checkpoints is whole" in str(report)
    with one.checkpointer(tmp_path, resume="on") as ckpt, pytest.raises(CheckpointError, match="insists"):
        ckpt.resume()
    with one.checkpointer(tmp_path, resume="off") as ckpt:
        assert ckpt.resume().why == "resume='off'"


@pytest.mark.parametrize(("at", "step"), [(14, 10), (15, 20), (100, 30), (0, 10), (None, 30)])
def test_resume_at_a_step_takes_the_closest(tmp_path: Path, at: int | None, step: int) -> None:
    """Of two equally close ones the higher."""
    one = saved_at(tmp_path, 10, 20, 30)
    with one.checkpointer(tmp_path) as ckpt:
        assert ckpt.resume(at=at).step == step


def test_resume_at_a_digest_and_a_pin(tmp_path: Path) -> None:
    """A digest, its beginning, or a pinned name."""
    one = saved_at(tmp_path, 10, 20)
    with one.checkpointer(tmp_path) as ckpt:
        first = ckpt.store.commits()[0]
        ckpt.pin("good", at=10)
        assert ckpt.resume(at=first.digest).step == 10
        assert ckpt.resume(at=first.digest[:16]).step == 10
        assert ckpt.resume(at="pin:good").step == 10


def test_rewound_run_goes_on_and_its_saves_are_the_newest(tmp_path: Path) -> None:
    """After resume(at=10) a save at step 11 is what the next resume takes, though step 20 was saved before."""
    one = saved_at(tmp_path, 10, 20)
    with one.checkpointer(tmp_path, mode="sync") as ckpt:
        origin = ckpt.resume(at=10).commit
        ckpt.save(11)
    with one.checkpointer(tmp_path) as ckpt:
        report = ckpt.resume()
        assert origin is not None and report.commit is not None
        assert report.step == 11 and report.commit.info["resumed_from"] == origin.digest


def test_other_model_changes_nothing_and_lists_shapes(tmp_path: Path) -> None:
    """A model of another width is refused with names and shapes of both."""
    saved_at(tmp_path, 10)
    other = Training(width=16)
    before = other.model[0].weight.clone()
    with other.checkpointer(tmp_path) as ckpt, pytest.raises(CheckpointMismatchError, match=r"\[8, 4\].*\[16, 4\]"):
        ckpt.resume()
    assert torch.equal(before, other.model[0].weight)


def test_other_components_are_named(tmp_path: Path) -> None:
    """What only one side has is an error, unless strict=False leaves it out."""
    one = saved_at(tmp_path, 10)
    state = {**one.state, "extra": {"x": 1}}
    del state["average"]
    with tl.Checkpointer(tmp_path, state, rng=tl.Streams(noise=one.noise)) as ckpt:
        with pytest.raises(
            CheckpointMismatchError, match=r"average: in the checkpoint(?s:.*)extra: among the components"
        ):
            ckpt.resume()
        report = ckpt.resume(strict=False)
    assert report.step == 10 and len(report.diffs) == 2


def test_second_writer_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    """One training writes a store; the message names who."""
    one = Training()
    first = one.checkpointer(tmp_path)
    first.resume()
    with one.checkpointer(tmp_path) as second:
        with pytest.raises(WriterConflictError):
            second.resume()
        first.close()
        assert second.resume().fresh
