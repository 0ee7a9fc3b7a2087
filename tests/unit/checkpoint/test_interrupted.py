"""Ctrl-C in the middle of a save, and saves whose outcome nobody asks for: nothing is lost, and nothing is silent."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.checkpoint.background import Background
from trajload.checkpoint.disk import Disk
from trajload.checkpoint.store import Store
from trajload.errors import CheckpointAbortedError, CheckpointError, WriterConflictError


class Held(Disk):
    """Stops at each file of a component until it is let go; sends SIGINT once somebody waits for it."""

    def __init__(self, *, is_waited_for: threading.Event, interrupts: int) -> None:
        self.go, self.waited = threading.Event(), is_waited_for
        self.interrupts = interrupts

    def create(self, path: Path) -> int:
        if path.name == "n.json" and self.interrupts:
            self.interrupts -= 1
            self.waited.wait(60.0)
            os.kill(os.getpid(), signal.SIGINT)
            self.go.wait(60.0)
        return super().create(path)


def test_work_goes_on_after_an_interrupt_of_whoever_waits() -> None:
    """Its outcome is there for the next who asks: `Thread.join` would take it for ended, and for done."""
    waits, go = threading.Event(), threading.Event()

    def work() -> int:
        waits.wait(60.0)
        os.kill(os.getpid(), signal.SIGINT)
        go.wait(60.0)
        return 7

    background: Background[int] = Background("test")
    background.start(work)
    with pytest.raises(KeyboardInterrupt):
        waits.set()
        background.take()
    assert background.busy
    go.set()
    assert background.take() == 7


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_fork_in_the_middle_of_a_save_does_not_wait_for_it(tmp_path: Path) -> None:
    """It has none of the threads: whatever it asks is answered at once, and the save is the parent's."""
    disk = Held(is_waited_for=threading.Event(), interrupts=0)
    ckpt = tl.Checkpointer(Store(tmp_path, disk=disk), {"n": {"updates": 1}}, mode="async")
    begun = threading.Event()
    real = disk.create

    def create(path: Path) -> int:
        begun.set()
        disk.go.wait(60.0)
        return real(path)

    disk.create = create  # type: ignore[method-assign]
    ckpt.save(1)
    begun.wait(60.0)
    child = os.fork()
    if not child:
        status = 1
        try:
            with pytest.raises(CheckpointError, match=rf"process {os.getppid()} was writing .* wait there"):
                ckpt.wait()
            with pytest.raises(CheckpointError, match="is a fork: save there"):
                ckpt.save(2)
            ckpt.close()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    disk.go.set()
    ckpt.close()
    assert status == 0
    assert [commit.step for commit in Store(tmp_path, create=False).commits()] == [1]


def test_close_that_is_interrupted_holds_the_store_until_the_save_is_written(tmp_path: Path) -> None:
    """Nobody else gets in beside it, and the second close gives the commit."""
    disk = Held(is_waited_for=threading.Event(), interrupts=1)
    ckpt = tl.Checkpointer(Store(tmp_path, disk=disk), {"n": {"updates": 1}}, mode="async")
    ckpt.save(1)
    with pytest.raises(KeyboardInterrupt):
        disk.waited.set()
        ckpt.close()
    with pytest.raises(WriterConflictError), Store(tmp_path, create=False).writer():
        pass
    disk.go.set()
    ckpt.close()
    assert [commit.step for commit in Store(tmp_path, create=False).commits()] == [1]


def test_interrupted_sync_save_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    """In a notebook the process goes on: its files would stay until another writer comes."""

    class Interrupted(Disk):
        def create(self, path: Path) -> int:
            if path.name == "n.json" and "s000000001" in str(path):
                raise KeyboardInterrupt
            return super().create(path)

    with tl.Checkpointer(Store(tmp_path, disk=Interrupted()), {"n": {}}, mode="sync") as ckpt:
        with pytest.raises(KeyboardInterrupt):
            ckpt.save(1)
        assert not list((tmp_path / "gen").iterdir())
        ckpt.save(2)
        assert [commit.step for commit in ckpt.store.commits()] == [2]


class Full(Disk):
    def __init__(self) -> None:
        self.is_full = True

    def create(self, path: Path) -> int:
        if path.name == "n.json" and self.is_full:
            raise OSError(errno.ENOSPC, "full", str(path))
        return super().create(path)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_close_raises_where_the_newest_save_was_only_logged(tmp_path: Path, mode: Any) -> None:
    """A script that ends after it would otherwise end well, with its last state on no disk; a later commit makes it good."""
    disk = Full()
    options: dict[str, Any] = {"mode": mode, "every": tl.Every(steps=1)}
    with pytest.raises(CheckpointAbortedError, match="disk is full"):
        with tl.Checkpointer(Store(tmp_path, disk=disk), {"n": {}}, **options) as ckpt:
            assert ckpt.step(1)
            while ckpt._outcomes.busy:
                pass
            ckpt.step(1)  # takes the outcome, and logs it
        pytest.fail("closed in silence")
    with tl.Checkpointer(Store(tmp_path, disk=disk), {"n": {}}, **options) as ckpt:
        ckpt.step(1)
        while ckpt._outcomes.busy:
            pass
        disk.is_full = False
        ckpt.step(2)
    assert [commit.step for commit in Store(tmp_path, create=False).commits()] == [2]
