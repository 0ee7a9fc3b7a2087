"""The same promises in an object store, where there is no rename and no lock, and replies get lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from by_path import load

from trajload.checkpoint.object_store import ObjectStore
from trajload.checkpoint.store import ABANDONED_AFTER_S, Store
from trajload.errors import (
    CheckpointAbortedError,
    CheckpointCorruptError,
    CheckpointError,
    ConfigError,
    WriterConflictError,
)

obstore = pytest.importorskip("obstore")
from obstore.exceptions import GenericError  # noqa: E402
from obstore.store import MemoryStore  # noqa: E402

objectlab = load(Path(__file__).with_name("objectlab.py"))
opened, keys = objectlab.opened, objectlab.keys


def test_committed_files_come_back(save: Any) -> None:
    """Bytes, info and order are as in a folder."""
    memory = MemoryStore()
    store = opened(memory)
    big = bytes(range(256)) * 80_000
    first, second = save(store, 1), save(store, 2, {"a": big, "empty": b"", "deep/b": b"b"}, world=2, info={"x": 1.5})
    again = opened(memory, create=False)
    assert again.commits() == [first, second]
    assert again.newest() == (second, [])
    part = again.part(second, 1)
    assert (part.read("a"), part.read("empty"), part.read("deep/b")) == (big, b"", b"b")
    assert (second.durability, second.parent, second.info) == ("service", first.digest, {"x": 1.5})
    assert all(key.startswith("runs/exp1/") for key in keys(memory))
    with again:
        path = part.path("a")
        assert path.read_bytes() == big
    assert not path.exists()
    with pytest.raises(CheckpointError, match="no checkpoint store at"):
        ObjectStore(MemoryStore(), create=False)


def test_damaged_and_missing_objects_are_stepped_back_over(save: Any) -> None:
    """As in a folder."""
    memory = MemoryStore()
    store = opened(memory)
    commits = [save(store, step) for step in (1, 2, 3)]
    keys_of = [f"runs/exp1/{store.part(c, 0).entry('model.safetensors').path}" for c in commits]
    obstore.put(memory, keys_of[2], bytes(obstore.get(memory, keys_of[2]).bytes()).replace(b"3", b"4"))
    obstore.delete(memory, keys_of[1])
    found, faults = store.newest()
    assert found == commits[0]
    assert [("damaged" in f.what, "missing" in f.what) for f in faults] == [(True, False), (False, True)]
    with pytest.raises(CheckpointCorruptError, match="is damaged"):
        store.part(commits[2], 0).read("model.safetensors")


def test_reply_lost_after_the_record_was_written_is_success(save: Any) -> None:
    """The record that is there is ours."""
    for error in (GenericError("timed out"), obstore.exceptions.PreconditionError("409")):
        store = opened()
        save(store, 1)
        _fail_commit(store, [("put", "after", error)])
        assert save(store, 2).seq == 2
        assert [c.step for c in store.commits()] == [1, 2]


def _fail_commit(store: ObjectStore, plan: list[Any]) -> None:
    """Let the plan begin with the record's put."""
    medium = store._objects
    publish = medium.publish

    def planned(path: str, data: bytes, nonce: str) -> bool:
        if path.startswith("commits/"):
            medium._api.plan = list(plan)
        return publish(path, data, nonce)

    medium.publish = planned  # type: ignore[method-assign]


def test_put_that_never_arrived_is_repeated(save: Any) -> None:
    """Also when reading fails in between, and when services say that there was a conflict."""
    store = opened()
    lost = GenericError("connection reset")
    _fail_commit(
        store, [("put", "before", lost), ("get", "before", lost), ("put", "before", lost), ("get", "after", lost)]
    )
    assert save(store, 1).seq == 1
    assert len(store.commits()) == 1


def test_outcome_that_cannot_be_told_is_an_error_and_no_guess(save: Any) -> None:
    """The next resume sees what became of it."""
    lost = GenericError("unreachable")
    store = opened()
    _fail_commit(store, [("put", "after", lost), *[("get", "before", lost), ("put", "after", lost)] * 9])
    with pytest.raises(CheckpointAbortedError, match=r"is not known after 6 attempts.*will be seen at the next resume"):
        save(store, 1)
    store._objects._api.plan = []
    assert [c.step for c in opened_beside(store).commits()] == [1], "it did arrive"


def opened_beside(store: ObjectStore) -> ObjectStore:
    return opened(store._objects._store)


def test_number_won_by_another_is_a_conflict() -> None:
    """Two that begin the same number: one wins, the other is told so."""
    memory = MemoryStore()
    store = opened(memory)
    with store.writer():
        late = store.begin(1)
        vote = late.part(0).finish()
        publish = store._objects.publish

        def second(path: str, data: bytes, nonce: str) -> bool:
            if path.startswith("commits/"):
                obstore.put(memory, f"runs/exp1/{path}", b"another's")
            return publish(path, data, nonce)

        store._objects.publish = second  # type: ignore[method-assign]
        with pytest.raises(WriterConflictError, match=r"sequence number 1 .* was published by another writer first"):
            store.commit(late, [vote], {})


def test_later_writer_takes_over_and_the_earlier_is_told(save: Any) -> None:
    """Before its record is written."""
    memory = MemoryStore()
    old, new = opened(memory), opened(memory)
    with old.writer():
        stale = old.begin(1)
        vote = stale.part(0).finish()
        polite = opened(memory, take_over=False)
        with (
            pytest.raises(WriterConflictError, match=r"is being written by process \d+ on .* \(epoch 1\)"),
            polite.writer(),
        ):
            pass
        taken = save(new, 2)
        with pytest.raises(WriterConflictError, match=r"this writer \(epoch 1\) has lost the store to one of epoch 2"):
            old.commit(stale, [vote], {})
        old.abandon(stale)
    with polite.writer():
        pass  # the last one is done
    assert polite.commits() == [taken]


def test_racing_writers_have_one_winner_a_number(race: Any) -> None:
    """No success that was told is missing, and none is told twice."""
    memory = MemoryStore()
    race(lambda: opened(memory), num_writers=3, num_steps=15)


def test_generation_begun_too_long_ago_is_not_committed(save: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may take it for abandoned."""
    from trajload.checkpoint import object_store

    store = opened()
    with store.writer():
        generation = store.begin(1)
        vote = generation.part(0).finish()
        real = object_store.time.monotonic
        monkeypatch.setattr(object_store.time, "monotonic", lambda: real() + ABANDONED_AFTER_S)
        with pytest.raises(CheckpointAbortedError, match="was begun 24 hours ago"):
            store.commit(generation, [vote], {})


def test_service_that_overwrites_says_so(save: Any) -> None:
    """Two writers cannot be told apart there; the commit has it in writing."""
    store = opened()
    put = obstore.put
    store._objects._api.put = lambda *args, mode=None, **kwargs: put(*args, **kwargs)
    commit = save(store, 1)
    assert commit.durability == "service, single writer by agreement"
    assert store.newest() == (commit, [])


def test_file_that_cannot_be_made_ends_its_generation(save: Any) -> None:
    """The caller's own error comes through."""

    def chunks() -> Any:
        yield b"x" * 3_000_000
        raise ZeroDivisionError("the tensor is gone")

    store = opened()
    with store.writer():
        generation = store.begin(1)
        with pytest.raises(ZeroDivisionError, match="the tensor is gone"):
            generation.part(0).write("a", chunks())
        store.abandon(generation)
    assert store.commits() == []


def test_commits_move_between_folder_and_object_store(save: Any, tmp_path: Path) -> None:
    """Both ways, checked."""
    local, remote, back = Store(tmp_path / "a"), opened(), Store(tmp_path / "b")
    commit = save(local, 5, {"a": bytes(2_000_000)}, world=2)
    there = local.promote(commit, remote)
    here = remote.promote(there, back)
    assert back.part(here, 1).read("a") == bytes(2_000_000)
    assert here.info["promoted_from"]["digest"] == there.digest
    path = local.part(commit, 0).path("a")
    path.write_bytes(b"\1" + bytes(1_999_999))
    with pytest.raises(CheckpointCorruptError, match="damaged"):
        local.promote(commit, opened())


def test_files_of_another_writer_are_sent(save: Any) -> None:
    """From a temporary folder, which is gone afterwards; read back side by side."""
    store = opened()
    with store.writer():
        generation = store.begin(1)
        part = generation.part(0)
        folder = part.make_folder("dcp")
        (folder / "deep").mkdir()
        (folder / "deep" / "__0_0.distcp").write_bytes(b"shard" * 1000)
        (folder / ".metadata").write_bytes(b"m")
        assert [entry.name for entry in part.adopt("dcp")] == ["dcp/.metadata", "dcp/deep/__0_0.distcp"]
        assert not folder.exists()
        commit = store.commit(generation, [part.finish()], {})
    assert store.verify(commit) == []
    with store:
        reader = store.part(commit, 0)
        metadata, shard = reader.path("dcp/.metadata"), reader.path("dcp/deep/__0_0.distcp")
        assert shard == metadata.parent / "deep" / "__0_0.distcp"
        assert shard.read_bytes() == b"shard" * 1000


def test_commits_move_between_object_stores(save: Any) -> None:
    """Reading one while writing the other, also in one bucket."""
    memory = MemoryStore()
    near, far = ObjectStore(memory, prefix="near"), ObjectStore(memory, prefix="far")
    commit = save(near, 5, {"a": bytes(20_000_000), "empty": b""})
    there = near.promote(commit, far)
    assert far.verify(there) == []
    assert far.part(there, 0).read("a") == bytes(20_000_000)


def test_upload_that_ends_early_leaves_no_object(save: Any) -> None:
    """Neither small nor of several pieces."""
    memory = MemoryStore()
    store = opened(memory)
    for size in (10, 20_000_000):

        def chunks(size: int = size) -> Any:
            yield bytes(size)
            raise ZeroDivisionError

        with store.writer():
            generation = store.begin(1)
            with pytest.raises(ZeroDivisionError):
                generation.part(0).write("a", chunks())
            assert not [key for key in keys(memory) if "/gen/" in key]


def test_urls_are_opened_or_refused_with_a_reason() -> None:
    """Memory needs no service; a folder has a store of its own."""
    assert ObjectStore.open("memory://").commits() == []
    with pytest.raises(ConfigError, match="A folder is opened by `Store`"):
        ObjectStore.open("/tmp/x")
    with pytest.raises(ConfigError, match="cannot be opened"):
        ObjectStore.open("zz://bucket/x")
