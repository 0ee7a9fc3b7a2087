"""What people do to a Checkpointer, and what their own code does inside it: said with a cure, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trajload as tl
from trajload.checkpoint.exit_status import FAILED_STATUS
from trajload.checkpoint.store import Store
from trajload.errors import CheckpointAbortedError, CheckpointError, ConfigError

pytestmark = pytest.mark.global_rng  # layers of torch are initialised from its global generator


def steps_in(folder: Path) -> list[int]:
    return [commit.step for commit in Store(folder, create=False).commits()]


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A store of a run that came to step 3000."""
    with tl.Checkpointer(tmp_path, {"n": {"updates": 0}}, mode="sync") as ckpt:
        for step in (1000, 2000, 3000):
            ckpt.save(step)
    return tmp_path


def test_run_that_forgot_to_resume_does_not_push_out_the_checkpoints_of_another(full: Path) -> None:
    """Refused at the first step, not when the first save is due, thousands of updates later; resuming cures it."""
    every = tl.Every(steps=1000)
    with tl.Checkpointer(full, {"n": {"updates": 0}}, mode="sync", every=every) as ckpt:
        with pytest.raises(ConfigError, match=r"holds 3 checkpoints, the newest of step 3000, and resume\(\) was not"):
            ckpt.step(1)
        with pytest.raises(ConfigError, match="resume='off' to start anew"):
            ckpt.save(1)
        assert steps_in(full) == [1000, 2000, 3000]
        ckpt.resume()
        ckpt.save(4000)
    assert steps_in(full) == [2000, 3000, 4000]


def test_run_whose_resume_failed_does_not_save_either(full: Path) -> None:
    """Whoever catches the mismatch and goes on would train from nothing over what is there."""
    with tl.Checkpointer(full, {"model": torch.nn.Linear(1, 1)}, mode="sync") as ckpt:
        with pytest.raises(CheckpointError, match="holds other components"):
            ckpt.resume()
        with pytest.raises(ConfigError, match=r"resume\(\) was not called"):
            ckpt.save(1)
    assert steps_in(full) == [1000, 2000, 3000]


def test_run_that_starts_anew_beside_others_is_told_what_will_go(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was asked for, so it is done; pins stay."""
    with tl.Checkpointer(full, {"n": {}}, mode="sync", resume="off", keep=tl.Keep(last=1)) as ckpt:
        assert ckpt.resume().fresh
        ckpt.pin("old", 3000)
        ckpt.save(1)
    assert "holds 3 checkpoints, the newest of step 3000. `keep` counts them in: pin those" in caplog.text
    assert steps_in(full) == [3000, 1]


TOLD: list[tuple[dict[str, Any], str]] = [
    ({"metrics": {"loss": "low"}}, r"metrics\['loss'\] is a str: expected one number"),
    ({"metrics": {"loss": torch.ones(3)}}, r"metrics\['loss'\] is a Tensor: expected one number"),
    ({"metrics": [0.5]}, "metrics is a list: expected name"),
    ({"metrics": {1: 0.5}}, "metrics has the key 1"),
    ({"epoch": "first"}, "epoch='first' is invalid"),
    ({"epoch": -1}, "epoch=-1 is invalid"),
    ({"train_step": 10**30}, "train_step=1000000000000000000000000000000 is invalid"),
]


@pytest.mark.parametrize(("told", "message"), TOLD)
def test_what_is_told_of_a_save_is_looked_at_first(tmp_path: Path, told: dict[str, Any], message: str) -> None:
    """Also where no save is due: not thousands of updates later, and not by an error of Python's own."""
    with tl.Checkpointer(tmp_path, {"n": {}}, mode="sync", every=tl.Every(steps=100)) as ckpt:
        for call in (ckpt.step, ckpt.save):
            with pytest.raises(ConfigError, match=message):
                call(**{"train_step": 1, **told})
        ckpt.save(2, epoch=np.int64(3), metrics={"loss": torch.tensor(0.5), "n": np.float32(2)})  # type: ignore[arg-type]
        assert ckpt.store.commits()[-1].info["metrics"] == {"loss": 0.5, "n": 2.0}
    assert steps_in(tmp_path) == [2]


def test_a_checkpoint_before_the_first_is_no_checkpoint(full: Path) -> None:
    """-1 is not the last one, and the closest to it would be the oldest."""
    with tl.Checkpointer(full, {"n": {}}) as ckpt:
        for at in (-1, True, 1.5, ""):
            with pytest.raises(ConfigError, match=r"at is .*: expected a step"):
                ckpt.resume(at=at)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="store='' is empty"):
        tl.Checkpointer("", {"n": {}})


def test_best_by_a_number_that_nobody_tells_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name that is written otherwise would keep nothing, in silence; once, and not where some commits have it."""
    every, keep = tl.Every(steps=1), tl.Keep(last=1, best="min:val_loss")
    with tl.Checkpointer(tmp_path / "a", {"n": {}}, mode="sync", every=every, keep=keep) as ckpt:
        for step in (1, 2, 3):
            ckpt.step(step, metrics={"valid_loss": 1.0})
    assert caplog.text.count("no checkpoint has that metric, so none is kept for it; they have ['valid_loss']") == 1
    with tl.Checkpointer(tmp_path / "b", {"n": {}}, mode="sync", every=every, keep=keep) as ckpt:
        ckpt.step(1, metrics={"val_loss": 1.0})
        ckpt.step(2)
    assert caplog.text.count("no checkpoint has that metric") == 1 and steps_in(tmp_path / "b") == [1, 2]


class Broken:
    """A component whose own code fails."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def state_dict(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"a": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_error_in_a_component_names_it_and_the_next_save_works(tmp_path: Path, mode: Any) -> None:
    """Its class, its words, and that nothing was written; with functions too."""
    broken = Broken(RuntimeError("no such thing"))
    getting = tl.checkpoint.Component(get=lambda: broken.state_dict(), set=lambda saved: None)
    with tl.Checkpointer(tmp_path, {"sched": broken, "other": getting}, mode=mode) as ckpt:
        with pytest.raises(
            CheckpointError, match=r"'sched' gave no state: state_dict\(\) of .*Broken raised RuntimeErr"
        ):
            ckpt.save(1)
        broken.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            ckpt.save(1)
        assert not list((tmp_path / "gen").iterdir())
        broken.error = None
        ckpt.save(1)
    assert steps_in(tmp_path) == [1]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_tensor_without_data_is_refused_by_name(tmp_path: Path, mode: Any) -> None:
    """A module that was built on the meta device and never filled."""
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    with (
        tl.Checkpointer(tmp_path, {"model": model}, mode=mode, retries=0) as ckpt,
        pytest.raises(CheckpointError, match="is on the meta device and has no data"),
    ):
        ckpt.save(1)
    assert steps_in(tmp_path) == []


def test_error_that_is_no_operating_system_s_aborts_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device, or memory, fails while tensors are written: an aborted save like any other, and the next one works."""
    model = torch.nn.Linear(2, 2)
    with tl.Checkpointer(tmp_path, {"model": model}, mode="sync", retries=0) as ckpt:
        ckpt.save(1)
        with monkeypatch.context() as patch:

            def fails(tensor: torch.Tensor) -> Any:
                raise MemoryError("no room")

            patch.setattr("trajload.checkpoint.tensors.tensor_bytes", fails)
            torch.nn.init.zeros_(model.weight)
            with pytest.raises(CheckpointAbortedError, match="MemoryError: no room"):
                ckpt.save(2)
        ckpt.save(3)
        assert len(list((tmp_path / "gen").iterdir())) == 2
    assert steps_in(tmp_path) == [1, 3]


def test_expanded_tensor_of_a_tree_is_replaced_since_it_cannot_be_written_into(tmp_path: Path) -> None:
    """Its elements are one and the same memory."""
    tree = {"scale": torch.ones(1).expand(4), "other": torch.zeros(2)}
    with tl.Checkpointer(tmp_path, {"tree": tree}, mode="sync") as ckpt:
        ckpt.save(1)
        tree["scale"], other = torch.zeros(1).expand(4), tree["other"]
        other += 5
        ckpt.resume()
    assert tree["scale"].tolist() == [1.0] * 4 and tree["other"] is other and other.tolist() == [0.0, 0.0]


def test_names_behind_a_wrapper_are_refused_first_and_always(tmp_path: Path) -> None:
    """With strict=False nothing of the module would be loaded, and training would start from noise."""
    inner = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(40)))
    with tl.Checkpointer(tmp_path, {"model": inner}, mode="sync") as ckpt:
        ckpt.save(1)
    wrapped = torch.nn.ModuleDict({"module": inner})
    for strict in (True, False):
        with (
            tl.Checkpointer(tmp_path, {"model": wrapped}, mode="sync") as ckpt,
            pytest.raises(CheckpointError, match=r"all names here begin with 'module\.'"),
        ):
            ckpt.resume(strict=strict)


def test_fork_is_told_that_the_checkpointer_is_not_its_own(tmp_path: Path) -> None:
    """A worker that inherits one neither saves nor lets go of the parent's lock."""
    with tl.Checkpointer(tmp_path, {"n": {}}, mode="sync") as ckpt:
        ckpt.save(1)
        parent = ckpt._pid
        ckpt._pid = os.getpid() + 1  # what a fork finds
        with pytest.raises(CheckpointError, match=r"belongs to process .* of which this one .* is a fork"):
            ckpt.save(2)
        ckpt.close()
        ckpt._pid = parent
        ckpt.save(3)
    assert steps_in(tmp_path) == [1, 3]


SCRIPT = """
import atexit, sys, trajload as tl
from trajload.checkpoint.disk import Disk
from trajload.checkpoint.store import Store

class Failing(Disk):
    def fsync(self, fd, path):
        if "gen" in str(path):
            raise OSError(5, "refused by the test", str(path))
        super().fsync(fd, path)

atexit.register(lambda: print("a handler that comes later", flush=True))
ckpt = tl.Checkpointer(Store(sys.argv[1], disk=Failing()), {"n": {"updates": 1}}, mode="async", retries=0)
ckpt.save(1)
"""


def test_script_that_ends_without_close_says_that_its_last_save_failed(tmp_path: Path) -> None:
    """Nobody takes the outcome of it: it is logged, and the status is that of an error on the way out; all else happens."""
    told = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert "the last save did not commit" in told.stderr and "refused by the test" in told.stderr
    assert told.returncode == FAILED_STATUS and told.stdout == "a handler that comes later\n"
