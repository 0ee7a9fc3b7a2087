"""The same promises in an object store, where there is no rename and no lock, and replies get lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from trajload.checkpoint.entries import Keep
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


class Flaky:
    """obstore whose next calls go wrong: each of `plan` is (function, before or after the work, error)."""

    def __init__(self) -> None:
        self.plan: list[tuple[str, str, BaseException]] = []
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(obstore, name)

        def call(store: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, str(path)))
            planned = self.plan.pop(0) if self.plan and self.plan[0][0] == name else None
            if planned and planned[1] == "before":
                raise planned[2]
            result = real(store, path, *args, **kwargs)
            if planned and planned[1] == "after":
                raise planned[2]
            return result

        return call


def opened(memory: Any = None, **kwargs: Any) -> ObjectStore:
    store = ObjectStore(memory or MemoryStore(), prefix="runs/exp1", **kwargs)
    store._objects._api = Flaky()
    store._objects._pause = lambda seconds: None
    return store


def keys(memory: Any) -> list[str]:
    return sorted(item["path"] for item in obstore.list(memory).collect())


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


def test_racing_writers_have_one_winner_a_number(save: Any) -> None:
    """No success that was told is missing, and none is told twice."""
    memory = MemoryStore()
    won: dict[int, int] = {}
    refused: set[Any] = set()
    errors: list[BaseException] = []
    start = threading.Barrier(3)

    def race(who: int) -> None:
        store = opened(memory)
        start.wait()
        for step in range(15):
            try:
                commit = save(store, step, {"who": b"%d" % who}, info={"who": who, "step": step})
                assert won.setdefault(commit.seq, who) == who
            except WriterConflictError:
                refused.add((who, step))
            except BaseException as err:
                errors.append(err)
                return

    threads = [threading.Thread(target=race, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store = opened(memory)
    assert {c.seq: c.info["who"] for c in store.commits()} == won
    assert not refused & {(c.info["who"], c.info["step"]) for c in store.commits()}, "a false conflict"
    assert store.faults == []
    assert all(store.verify(commit) == [] for commit in store.commits())


def test_retention_pins_and_references_hold(save: Any) -> None:
    """The record goes first; what live commits refer to stays."""
    memory = MemoryStore()
    store = opened(memory)
    first, second = save(store, 1, {"enc": b"frozen", "head": b"1"}), save(store, 2)
    store.pin("keep", second)
    with store.writer():
        generation = store.begin(3)
        part = generation.part(0)
        part.refer("enc", store.part(first, 0).entry("enc"))
        third = store.commit(generation, [part.finish()], {})
    store._objects._api.calls.clear()
    assert store.retain(Keep(last=1)) == [first]
    deleted = [path for name, path in store._objects._api.calls if name == "delete" and "/epoch/" not in path]
    assert deleted[0] == "runs/exp1/commits/0000000001.json"
    assert store.commits() == [second, third]
    assert store.part(third, 0).read("enc") == b"frozen"
    left = [key for key in keys(memory) if first.generation in key]
    assert left == [f"runs/exp1/{first.generation}/r00000/enc"]
    store.unpin("keep")
    save(store, 4)
    store.retain(Keep(last=1))
    assert not [key for key in keys(memory) if first.generation in key]


def test_pin_set_while_its_commit_is_removed_brings_it_back(save: Any) -> None:
    """Nothing keeps the two apart, so the one who removes looks again."""
    memory = MemoryStore()
    store, other = opened(memory), opened(memory)
    first = save(store, 1)
    save(store, 2)
    remove = store._objects.remove

    def pinned_just_before(path: str) -> None:
        if path == "commits/0000000001.json":
            other.pin("late", first)
        remove(path)

    store._objects.remove = pinned_just_before  # type: ignore[method-assign]
    assert store.retain(Keep(last=1)) == []
    assert store.pins() == {"late": first}
    assert store.verify(first) == []


def test_commit_removed_while_it_is_being_pinned_is_not_pinned(save: Any) -> None:
    """The one who pins looks again too."""
    memory = MemoryStore()
    store = opened(memory)
    first = save(store, 1)
    publish = store._objects.publish

    def removed_just_after(path: str, data: bytes, nonce: str) -> bool:
        obstore.delete(memory, "runs/exp1/commits/0000000001.json")
        return publish(path, data, nonce)

    store._objects.publish = removed_just_after  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="was removed while it was being pinned"):
        store.pin("a", first)
    assert store.pins() == {} and not any("/pins/" in key for key in keys(memory))


def test_references_removed_while_a_commit_appears_withdraw_it(save: Any) -> None:
    """A commit never names what is gone."""
    memory = MemoryStore()
    store = opened(memory)
    first = save(store, 1, {"enc": b"frozen"})
    with store.writer():
        generation = store.begin(2)
        part = generation.part(0)
        part.refer("enc", store.part(first, 0).entry("enc"))
        vote = part.finish()
        publish = store._objects.publish

        def removed_just_before(path: str, data: bytes, nonce: str) -> bool:
            obstore.delete(memory, "runs/exp1/commits/0000000001.json")
            return publish(path, data, nonce)

        store._objects.publish = removed_just_before  # type: ignore[method-assign]
        with pytest.raises(CheckpointAbortedError, match="its commit was removed meanwhile"):
            store.commit(generation, [vote], {})
    assert store.commits() == []


def test_young_unknown_generation_is_left_and_an_old_one_swept(save: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may be writing it, and no lock tells."""
    memory = MemoryStore()
    store, other = opened(memory), opened(memory)
    with other.writer():
        begun = other.begin(1)
        part = begun.part(0)
        part.write("a", [b"a"])
        assert store.sweep() == []
        assert "others may be writing" in str(store.faults[-1])
        monkeypatch.setattr(store._objects, "age_s", lambda folder: ABANDONED_AFTER_S + 1)
        assert store.sweep() == [begun.path]


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


def test_urls_are_opened_or_refused_with_a_reason() -> None:
    """Memory needs no service; a folder has a store of its own."""
    assert ObjectStore.open("memory://").commits() == []
    with pytest.raises(ConfigError, match="A folder is opened by `Store`"):
        ObjectStore.open("/tmp/x")
    with pytest.raises(ConfigError, match="cannot be opened"):
        ObjectStore.open("zz://bucket/x")
