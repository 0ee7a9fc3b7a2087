"""The Checkpointer in one process: what a user types, and what comes back."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from by_path import load

import trajload as tl
from trajload.checkpoint.disk import Disk
from trajload.checkpoint.store import Store
from trajload.errors import (
    CheckpointAbortedError,
    CheckpointError,
    ConfigError,
)

trainings = load(Path(__file__).with_name("trainings.py"))
Training, damage, saved_at = trainings.Training, trainings.damage, trainings.saved_at

pytestmark = pytest.mark.global_rng  # layers of torch are initialised from its global generator


class Slow(Disk):
    """A disk that waits before it publishes, until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def link(self, source: Path, target: Path) -> None:
        assert target.parent.name != "commits" or self.go.wait(300)
        super().link(source, target)


class Failing(Disk):
    """A disk that refuses to bring files to the platter, as often as told."""

    def __init__(self, times: int, error: int = 5) -> None:
        self.times, self.error = times, error

    def fsync(self, fd: int, path: Path) -> None:
        if self.times and "gen" in str(path):
            self.times -= 1
            raise OSError(self.error, "refused by the test", str(path))
        super().fsync(fd, path)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second tries come without a pause."""
    monkeypatch.setattr("trajload.checkpoint.saving._PAUSE_S", 0.0)


@pytest.mark.parametrize("mode", ["sync", "async", "auto"])
def test_resumed_training_does_what_the_first_would_have_done(tmp_path: Path, mode: Any) -> None:
    """Losses, moving average, counter, schedule and draws of the next ten updates are equal, bit by bit."""
    one = Training()
    with one.checkpointer(tmp_path, mode=mode, every=tl.Every(steps=5)) as ckpt:
        assert ckpt.resume().fresh
        begun = [ckpt.step(step) for step in range(1, 8) if one.update()]
        assert begun == [False] * 4 + [True] + [False] * 2
    other = Training(seed=9)
    with other.checkpointer(tmp_path, mode=mode) as ckpt:
        report = ckpt.resume()
    assert (report.step, report.next_step, report.fresh, report.diffs) == (5, 6, False, ())
    again = Training(seed=0)
    for _ in range(5):
        again.update()
    expected = [again.update() for _ in range(10)]
    with one.checkpointer(tmp_path) as ckpt:
        ckpt.resume()
    assert [one.update() for _ in range(10)] == expected
    assert one.counts == again.counts == {"updates": 15}
    assert all(torch.equal(one.average[name], again.average[name]) for name in again.average)


def test_snapshot_of_an_async_save_is_not_changed_by_training(tmp_path: Path) -> None:
    """What is on the disk is the state at the call, although it is written while training goes on."""
    slow = Slow()
    one = Training()
    with tl.Checkpointer(Store(tmp_path, disk=slow), one.state, mode="async") as ckpt:
        one.update()
        before = {name: value.clone() for name, value in one.model.state_dict().items()}
        ckpt.save(1)
        one.update()
        assert ckpt.last is None
        slow.go.set()
        saved = ckpt.wait()
        assert saved is not None and saved.step == 1
    with tl.Checkpointer(tmp_path, one.state) as ckpt:
        ckpt.resume()
    assert one.counts == {"updates": 1}
    assert all(torch.equal(before[name], value) for name, value in one.model.state_dict().items())


@pytest.mark.parametrize(("when_busy", "steps"), [("wait", [1, 2]), ("skip", [1])])
def test_save_that_is_due_while_another_is_written_waits_or_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, when_busy: Any, steps: list[int]
) -> None:
    """By policy; what is left out is said and counted."""
    slow = Slow()
    one = Training()
    store = Store(tmp_path, disk=slow)
    every = tl.Every(steps=1)
    with tl.Checkpointer(store, one.state, mode="async", every=every, when_busy=when_busy) as ckpt:
        assert ckpt.step(1)
        if when_busy == "wait":
            threading.Timer(0.05, slow.go.set).start()
        begun = ckpt.step(2)
        assert begun is (when_busy == "wait")
        slow.go.set()
        ckpt.wait()
        assert ckpt.stats()["skipped"] == (not begun)
        assert [commit.step for commit in store.commits()] == steps
    assert ("left out" in caplog.text) is (not begun)


def test_transient_error_is_tried_again_in_a_new_generation(tmp_path: Path, at_once: None) -> None:
    """EIO on one file: the second try commits, and nothing of the first is left."""
    one = Training()
    store = Store(tmp_path, disk=Failing(1))
    with tl.Checkpointer(store, one.state, mode="sync") as ckpt:
        ckpt.save(1)
        assert ckpt.last is not None and ckpt.last.attempts == 2
    assert len(list((tmp_path / "gen").iterdir())) == 1
    assert store.verify(store.commits()[0]) == []


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_saves_that_do_not_commit_are_logged_and_raise_when_they_are_too_many(
    tmp_path: Path, at_once: None, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    """The first is logged, the second in a row raises in the training thread, chained to its cause; then saving works again."""
    one = Training()
    disk = Failing(10_000)
    every = tl.Every(steps=1)
    ckpt = tl.Checkpointer(Store(tmp_path, disk=disk), one.state, mode=mode, every=every, retries=1)
    with ckpt:
        with pytest.raises(CheckpointAbortedError, match=r"2 saves in a row did not commit") as caught:
            for step in range(1, 5):
                ckpt.step(step)
        assert caught.value.__cause__ is not None and "refused by the test" in str(caught.value)
        assert "did not commit (1 in a row)" in caplog.text
        disk.times = 0
        ckpt.save(9)
        ckpt.wait()
        assert ckpt.last is not None and (ckpt.last.step, ckpt.stats()["aborted"]) == (9, 2)


def test_full_disk_is_not_tried_again_and_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    """ENOSPC: one try, a typed error, and the commit before loads."""
    one = Training()
    disk = Failing(0, error=28)
    with tl.Checkpointer(Store(tmp_path, disk=disk), one.state, mode="sync") as ckpt:
        ckpt.save(1)
        disk.times = 1
        with pytest.raises(CheckpointError, match="refused by the test"):
            ckpt.save(2)
        assert disk.times == 0
        assert ckpt.resume().step == 1


def test_planned_size_beyond_free_space_is_refused_before_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan of the save is compared with the free space."""
    from trajload.checkpoint.medium import LocalMedium

    one = Training()
    with one.checkpointer(tmp_path, mode="sync") as ckpt:
        monkeypatch.setattr(LocalMedium, "free_bytes", lambda self: 1000)
        with pytest.raises(tl.errors.CheckpointSpaceError, match="got 1000 bytes free"):
            ckpt.save(1)
        assert list((tmp_path / "gen").iterdir()) == []


def test_unchanged_components_are_not_written_again(tmp_path: Path) -> None:
    """A frozen encoder is referred to, also by the first save after a resume; its bytes are counted, and verify."""
    frozen, head = torch.nn.Linear(200, 200), torch.nn.Linear(200, 200)
    state = {"frozen": frozen, "head": head}
    with tl.Checkpointer(tmp_path, state, mode="sync", keep=tl.Keep(last=1)) as ckpt:
        ckpt.save(1)
        with torch.no_grad():
            head.weight[100, 100] += 1.0  # no sample looks here: the digest decides
        ckpt.save(2)
        assert ckpt.last is not None and 160_000 < ckpt.last.bytes_referred < 165_000
    with tl.Checkpointer(tmp_path, state, mode="sync", keep=tl.Keep(last=1)) as ckpt:
        assert ckpt.resume().step == 2
        ckpt.save(3)
        assert ckpt.last is not None and ckpt.last.bytes_referred > 320_000
        ckpt.wait()
        [commit] = ckpt.store.commits()
        assert ckpt.store.verify(commit) == []


def test_damaged_file_is_written_again_instead_of_being_referred_to(tmp_path: Path) -> None:
    """The bytes are at hand: damage on the disk is not passed on to the next commit."""
    frozen = torch.nn.Linear(200, 200)
    with tl.Checkpointer(tmp_path, {"model": frozen}, mode="sync") as ckpt:
        ckpt.save(1)
        damage(tmp_path, 1)
        ckpt.save(2)
        assert ckpt.last is not None and ckpt.last.bytes_referred == 0
        assert ckpt.store.verify(ckpt.store.commits()[-1]) == []


def test_retention_keeps_the_last_every_nth_and_the_best(tmp_path: Path) -> None:
    """Metrics given to step decide the best."""
    one = Training()
    keep = tl.Keep(last=2, every=4, best="min:loss")
    losses = {1: 3.0, 2: 0.5, 3: 2.0, 4: 2.0, 5: 2.0, 6: 2.0, 7: 2.0}
    with one.checkpointer(tmp_path, mode="sync", every=tl.Every(steps=1), keep=keep) as ckpt:
        for step, loss in losses.items():
            ckpt.step(step, metrics={"loss": loss})
        ckpt.wait()
        assert [commit.step for commit in ckpt.store.commits()] == [2, 4, 6, 7]


def test_damage_that_retention_meets_is_logged_and_removes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest two shall stay, and one of them is damaged: older ones stay too, and the log says why, once."""
    one = saved_at(tmp_path, 1, 2)
    damage(tmp_path, 2)
    with one.checkpointer(tmp_path, mode="sync", keep=tl.Keep(last=2), resume="off") as ckpt:
        for step in (3, 4):
            ckpt.save(step)
            ckpt.wait()
            if step == 3:
                assert [commit.step for commit in ckpt.store.commits()] == [1, 2, 3]
    assert caplog.text.count("found while old checkpoints were removed") == 1


def test_promoted_commit_is_whole_in_another_store(tmp_path: Path) -> None:
    """Copied and verified; a training goes on from it there."""
    one = saved_at(tmp_path / "fast", 10, 20)
    with one.checkpointer(tmp_path / "fast") as ckpt:
        copied = ckpt.promote(tmp_path / "durable", at=10)
    assert copied is not None and copied.step == 10
    with one.checkpointer(tmp_path / "durable") as ckpt:
        assert ckpt.resume().step == 10


def test_steps_only_go_up_and_the_same_step_is_looked_at_once(tmp_path: Path) -> None:
    """A step twice is no second save; a lower one is an error that says what to do."""
    one = Training()
    with one.checkpointer(tmp_path, mode="sync", every=tl.Every(steps=1)) as ckpt:
        assert ckpt.step(3) and not ckpt.step(3)
        with pytest.raises(ConfigError, match=r"train_step=2 comes after 3.*resume\(at"):
            ckpt.step(2)
        with pytest.raises(ConfigError, match=r"train_step=-1 is invalid"):
            ckpt.step(-1)


BAD: dict[str, dict[str, Any]] = {
    "mode='quick' is invalid": {"mode": "quick"},
    "resume='maybe' is invalid": {"resume": "maybe"},
    "on_bad='ignore' is invalid": {"on_bad": "ignore"},
    "when_busy='drop' is invalid": {"when_busy": "drop"},
    "retries=-1 is invalid": {"retries": -1},
    "max_aborted=0 is invalid": {"max_aborted": 0},
    "timeout_s=0 is invalid": {"timeout_s": 0},
    "allowed_tags=5 is invalid": {"allowed_tags": 5},
    "allowed_tags=<generator": {"allowed_tags": (tag for tag in ["research"])},
    r"component names \['model'\] are taken": {"rank_state": {"model": {}}},
    r"component names \['rng'\] are taken": {"rank_state": {"rng": {}}},
    "torch.distributed is not initialised": {"group": object()},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_argument_is_named(tmp_path: Path, message: str) -> None:
    """Found when it is built, before any file is touched."""
    with pytest.raises(ConfigError, match=message):
        tl.Checkpointer(tmp_path / "store", {"model": {}}, **BAD[message])
    assert not (tmp_path / "store").exists()


def test_closed_checkpointer_says_so(tmp_path: Path) -> None:
    """Also after its context."""
    with Training().checkpointer(tmp_path) as ckpt:
        pass
    with pytest.raises(CheckpointError, match="is closed"):
        ckpt.step(1)


def test_failure_of_the_last_save_comes_out_of_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An async save that fails after the last step is not lost; while another error passes, it is logged."""
    one = Training()
    options: dict[str, Any] = {"mode": "async", "retries": 0}
    with (
        pytest.raises(CheckpointAbortedError, match="refused by the test"),
        tl.Checkpointer(Store(tmp_path, disk=Failing(99)), one.state, **options) as ckpt,
    ):
        ckpt.save(1)
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(ZeroDivisionError),
        tl.Checkpointer(Store(tmp_path, disk=Failing(99)), one.state, **options) as ckpt,
    ):
        ckpt.save(1)
        raise ZeroDivisionError
    assert "the last save did not commit" in caplog.text


def test_auto_saves_without_a_copy_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once; 'async' insists."""
    monkeypatch.setattr("trajload.checkpoint.memory.free_memory", lambda: 100)
    one = Training()
    run = one.checkpointer
    with run(tmp_path, mode="auto", every=tl.Every(steps=1)) as ckpt:
        ckpt.step(1)
        ckpt.step(2)
        assert [commit.info["mode"] for commit in ckpt.store.commits()] == ["sync", "sync"]
    assert caplog.text.count("training waits for its saves") == 1
    with run(tmp_path, mode="async", resume="off") as ckpt:
        ckpt.save(3)
        ckpt.wait()
        assert ckpt.store.commits()[-1].info["mode"] == "async"
