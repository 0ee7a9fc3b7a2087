"""A rehearsal says what retention and sweeping would do, where neither may be done: it writes nothing and takes no lock."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from by_path import load

from trajload.checkpoint.disk import Disk
from trajload.checkpoint.entries import Keep
from trajload.checkpoint.rehearsal import rehearsing
from trajload.checkpoint.store import Store

HERE = Path(__file__).parent
disks = load(HERE / "disks.py")


def note(store: Store, **who: Any) -> None:
    """Write the lock's file as another process would."""
    told = {"pid": os.getpid(), "host": os.uname().nodename, "since": 1.0, "epoch": 1, **who}
    (store.root / "writer.lock").write_text(json.dumps(told))


def test_disk_that_refuses_everything_is_only_read(store: Store, save: Any) -> None:
    """The answer is that of the store's own disk, and not one operation is tried; afterwards the store is as before."""
    for step in (1, 2, 3):
        save(store, step)
    (store.root / "gen" / "0000000009-s000000040-abcd").mkdir()
    disk = disks.WatchedDisk(error=errno.EROFS, fail_all=disks.OPERATIONS)
    read_only = Store(store.root, disk=disk, create=False)
    with rehearsing(read_only) as busy:
        swept = read_only.sweep()
        gone = read_only.retain(Keep(last=1))
    assert disk.log == [] == busy
    assert (swept, gone) == (store.sweep(), store.retain(Keep(last=1))) and [c.step for c in gone] == [1, 2]
    with pytest.raises(Exception, match="Read-only file system"), read_only.writer():
        pass


def test_who_writes_is_told_by_the_file_that_it_has_open(store: Store, save: Any) -> None:
    """Not by a process that has died, or let go; one that cannot be looked at counts as writing."""
    save(store, 1)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for who, seen in (
        ({}, None),  # this process has let go
        ({"pid": dead.pid}, None),
        ({"host": "elsewhere"}, f"process {os.getpid()} on elsewhere"),
        ({"pid": 1 << 70}, None),
    ):
        note(store, **who)
        with rehearsing(store) as busy:
            assert ([seen in str(fault) for fault in busy] == [True]) if seen else busy == []
    (store.root / "writer.lock").write_text("{")
    with rehearsing(store) as busy:
        assert "another process, which has not said who it is writes this store: until that ends" in str(busy)
    (store.root / "writer.lock").unlink()
    with store.writer(), rehearsing(Store(store.root)) as busy:
        assert f"process {os.getpid()} on" in str(busy[0])


def test_a_lock_taken_over_is_noted_in_one_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed on the way it names who had it before, or who has it now, and never nobody; what is left of a longer line counts not."""
    note(store, host="x" * 200)
    seen: list[dict[str, Any]] = []

    class Looking(Disk):
        def note(self, fd: int, path: Path, text: bytes) -> None:
            cut = os.ftruncate
            monkeypatch.setattr(os, "ftruncate", lambda *a: (seen.append(writer._lock._noted(fd)), cut(*a)))
            super().note(fd, path, text)
            monkeypatch.undo()

    writer = Store(store.root, disk=Looking())
    with writer.writer(), rehearsing(store) as busy:
        assert [found["pid"] for found in seen] == [os.getpid()] and seen[0]["host"] == os.uname().nodename
        assert f"process {os.getpid()} on {os.uname().nodename}" in str(busy)


def test_object_store_is_not_taken_over(save: Any) -> None:
    """Who has not said that it is done is told; objects stay as they are."""
    pytest.importorskip("obstore")
    from obstore.store import MemoryStore

    objectlab = load(HERE / "objectlab.py")
    memory = MemoryStore()
    store, other = objectlab.opened(memory), objectlab.opened(memory, take_over=False)
    for step in (1, 2):
        save(store, step)
    with store.writer():
        before = objectlab.keys(memory)
        with rehearsing(other) as busy:
            assert [commit.step for commit in other.retain(Keep(last=1))] == [1] and other.sweep() == []
        assert objectlab.keys(memory) == before and "(or was killed)" in str(busy[0])
    with rehearsing(other) as busy:
        assert busy == []
