"""Whatever the system refuses, and when: a typed error, and what was committed before still stands."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from by_path import load

from trajload.checkpoint.entries import Commit, Keep
from trajload.checkpoint.store import Store
from trajload.errors import CheckpointAbortedError, CheckpointError, TrajloadError

disks = load(Path(__file__).with_name("disks.py"))


def quick(root: Path) -> Store:
    return Store(root, disk=disks.WatchedDisk())


def session(store: Store) -> Commit:
    """A save, retention and a sweep, as a training does them; returns the commit."""
    with store.writer():
        store.sweep()
        generation = store.begin(2)
        try:
            part = generation.part(0)
            part.write("a/model", [b"new" * 10])
            commit = store.commit(generation, [part.finish()], {})
        except TrajloadError:
            store.abandon(generation)
            raise
        store.retain(Keep(last=1))
        return commit


def count(root: Path, save: Any) -> int:
    """Return how many operations a session makes."""
    save(quick(root), 1)
    disk = disks.WatchedDisk()
    session(Store(root, disk=disk))
    return len(disk.log)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_error_at_any_operation_is_typed_and_loses_nothing(tmp_path: Path, save: Any, error: int) -> None:
    """The n-th operation fails, for every n; afterwards the store works again."""
    total = count(tmp_path / "count", save)
    assert total > 50
    refused = 0
    for n in range(1, total + 1):
        root = tmp_path / f"{n}"
        first = save(quick(root), 1)
        committed = None
        try:
            committed = session(Store(root, disk=disks.WatchedDisk(fail_at=n, error=error)))
        except CheckpointError as err:
            refused += 1
            assert os.strerror(error) in str(err) and isinstance(err.__cause__, OSError)
        again = quick(root)
        found, _ = again.newest()
        assert found is not None, f"operation {n}"
        assert found == committed if committed else found.step in (1, 2)
        if found.step == 1:
            assert found == first
        third = save(again, 3)
        again.retain(Keep(last=1))
        again.sweep()
        assert again.commits() == [third]
        assert [f"gen/{p.name}" for p in (root / "gen").iterdir()] == [third.generation]
        assert not [p for p in root.rglob(".*") if p.name != ".lock"]
    assert refused > 20


def test_full_disk_does_not_keep_anybody_from_making_room(tmp_path: Path, save: Any) -> None:
    """Removal and sweeping write nothing."""
    store = quick(tmp_path / "s")
    first, second = save(store, 1), save(store, 2)
    with store.writer():
        abandoned = store.begin(3)
    full = Store(
        tmp_path / "s", disk=disks.WatchedDisk(fail_all=("create", "write", "note", "mkdir"), error=errno.ENOSPC)
    )
    with full.writer():
        with pytest.raises(
            CheckpointAbortedError, match=r"No space left on device \[ENOSPC\].*free space, or keep fewer"
        ):
            full.begin(4)
        assert full.sweep() == [abandoned.path]
        assert full.retain(Keep(last=1)) == [first]
    assert full.newest() == (second, [])
    assert full.durability == "unknown"


def test_failed_fsync_is_never_tried_again(tmp_path: Path) -> None:
    """The kernel says it once, and then forgets the pages."""
    disk = disks.WatchedDisk()
    store = Store(tmp_path / "s", disk=disk)
    with store.writer():
        generation = store.begin(1)
        part = generation.part(0)
        disk.log.clear()
        disk.fail_all = ("fsync",)
        for _ in range(2):
            with pytest.raises(CheckpointAbortedError):
                part.write("a", [b"x"])
    assert [operation for operation, _ in disk.log].count("fsync") == 1


def test_file_system_without_hard_links_still_commits(tmp_path: Path, save: Any) -> None:
    """The record is written in place, and tells of itself whether it is whole."""
    disk = disks.WatchedDisk(fail_all=("link",), error=errno.EPERM)
    store = Store(tmp_path / "s", disk=disk)
    first, second = save(store, 1), save(store, 2)
    assert store.newest() == (second, [])
    path = store.root / "commits" / "0000000002.json"
    path.write_bytes(path.read_bytes()[:50])
    assert store.newest()[0] == first
    assert save(store, 3).seq == 3, "a torn record uses up its number"
    with store.writer():
        late = store.begin(4)
        vote = late.part(0).finish()
        (store.root / "commits" / "0000000004.json").write_bytes(b"")
        with pytest.raises(CheckpointError, match="sequence number 4 is taken"):
            store.commit(late, [vote], {})


def test_file_system_without_folder_sync_says_so(tmp_path: Path, save: Any) -> None:
    """The commit promises less."""
    store = Store(tmp_path / "s", disk=disks.WatchedDisk(fail_all=("fsync_dir",), error=errno.EINVAL))
    assert save(store, 1).durability == "file"
    assert store.newest(verify="full")[0] is not None


def test_file_system_without_locks_says_so_and_sweeps_nothing(tmp_path: Path, save: Any) -> None:
    """Nobody can tell an abandoned generation from one that is being written."""
    store = Store(tmp_path / "s", disk=disks.WatchedDisk(fail_all=("flock",), error=errno.ENOLCK))
    with store.writer():
        store.begin(9)
    other = Store(tmp_path / "s", disk=disks.WatchedDisk(fail_all=("flock",), error=errno.ENOTSUP))
    assert save(other, 1).durability == "file+dir, single writer by agreement"
    assert other.sweep() == []
    assert "others may be writing" in str(other.faults[0])
    save(other, 2)
    assert [c.step for c in other.retain(Keep(last=1))] == [1]
    assert len(list((tmp_path / "s" / "gen").iterdir())) == 2


def test_later_writer_fences_the_earlier_where_locks_do_not_work(tmp_path: Path, save: Any) -> None:
    """A forgotten writer's commit is refused, or ignored."""
    no_locks = {"fail_all": ("flock",), "error": errno.ENOLCK}
    old, new = (Store(tmp_path / "s", disk=disks.WatchedDisk(**no_locks)) for _ in range(2))
    with old.writer():
        stale = old.begin(5)
        vote = stale.part(0).finish()
        taken = save(new, 6)
        with pytest.raises(CheckpointError, match=r"writer \(epoch 1\) has lost the store to one of epoch 2"):
            old.commit(stale, [vote], {})
        stale = old.begin(7)
        vote = stale.part(0).finish()
        # What it would be if it looked a moment before the other one published.
        old._lock.epoch, real = 2, old._lock.epoch
        from trajload.checkpoint import publish

        with pytest.MonkeyPatch.context() as patch:
            encode = publish.encode_record
            patch.setattr(publish, "encode_record", lambda kind, body: encode(kind, {**body, "epoch": real}))
            old.commit(stale, [vote], {})
    assert new.newest()[0] == taken
    assert [fault.kind for fault in new.faults] == ["fenced"]


def test_hint_that_cannot_be_written_harms_nothing(tmp_path: Path, save: Any) -> None:
    """LATEST is for people."""
    store = Store(tmp_path / "s", disk=disks.WatchedDisk(fail_all=("rename",)))
    made = save(store, 1)
    assert store.newest()[0] == made


def test_stale_or_torn_hint_harms_nothing(store: Store, save: Any) -> None:
    """Nothing reads it."""
    save(store, 1)
    for content in (b"", b'{"seq": 99}', os.urandom(100)):
        (store.root / "LATEST").write_bytes(content)
        found, faults = Store(store.root).newest()
        assert found is not None and (found.step, faults) == (1, [])


def test_read_only_file_system_can_be_read_and_not_written(store: Store, save: Any) -> None:
    """The error names the cure."""
    first = save(store, 1)
    reader = Store(store.root, disk=disks.WatchedDisk(fail_all=disks.OPERATIONS, error=errno.EROFS))
    assert reader.newest() == (first, [])
    with (
        pytest.raises(CheckpointError, match=r"Read-only file system \[EROFS\]\. .* choose another folder"),
        reader.writer(),
    ):
        pass
    with pytest.raises(CheckpointError, match="EROFS"):
        reader.pin("a", first)
    assert reader.durability == "unknown"
    assert Store(store.root, create=False, disk=disks.WatchedDisk(fail_all=disks.OPERATIONS)).pick() == first
