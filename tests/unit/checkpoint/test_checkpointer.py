"""The Checkpointer in one process: what a user types, and what comes back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trajload as tl
from trajload.checkpoint.disk import Disk
from trajload.checkpoint.store import Store
from trajload.errors import (
    CheckpointAbortedError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    ConfigError,
    WriterConflictError,
)

pytestmark = pytest.mark.global_rng  # layers of torch are initialised from its global generator


class Training:
    """A model with dropout and a moving average, an optimiser, a schedule, a counter, and generators of its own."""

    def __init__(self, seed: int = 0, width: int = 8) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        self.model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))
        self.optim = torch.optim.AdamW(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optim, 3)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.counts = {"updates": 0}
        self.noise = np.random.Generator(np.random.PCG64(seed))

    @property
    def state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optim": self.optim,
            "schedule": self.schedule,
            "average": self.average,
            "counts": self.counts,
        }

    def update(self) -> str:
        x = torch.randn(8, 4) + float(self.noise.standard_normal()) + float(np.random.standard_normal())  # noqa: NPY002
        loss = self.model(x).square().mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.schedule.step()
        self.counts["updates"] += 1
        for name, p in self.model.named_parameters():
            self.average[name].mul_(0.9).add_(p.detach(), alpha=0.1)
        return float(loss.item()).hex()

    def checkpointer(self, folder: Path, **options: Any) -> tl.Checkpointer:
        return tl.Checkpointer(folder, self.state, rng=tl.Streams(noise=self.noise), **options)


class Slow(Disk):
    """A disk that waits before it publishes, until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def link(self, source: Path, target: Path) -> None:
        assert target.parent.name != "commits" or self.go.wait(30)
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


def damage(folder: Path, step: int) -> None:
    """Flip a bit of the weights of a step."""
    [file] = folder.glob(f"gen/*-s{step:09d}-*/r00000/model.safetensors")
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)


def saved_at(folder: Path, *steps: int, **options: Any) -> Training:
    one = Training()
    with one.checkpointer(folder, mode="sync", keep=tl.Keep(last=9), **options) as ckpt:
        for step in steps:
            one.update()
            ckpt.save(step)
    return one


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
    run: Callable[..., Any] = one.checkpointer
    with run(tmp_path, mode="auto", every=tl.Every(steps=1)) as ckpt:
        ckpt.step(1)
        ckpt.step(2)
        assert [commit.info["mode"] for commit in ckpt.store.commits()] == ["sync", "sync"]
    assert caplog.text.count("training waits for its saves") == 1
    with run(tmp_path, mode="async") as ckpt:
        ckpt.save(3)
        ckpt.wait()
        assert ckpt.store.commits()[-1].info["mode"] == "async"
