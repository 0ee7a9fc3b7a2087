"""Removing, pinning and referring in an object store, where two processes may do so at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from by_path import load

from trajload.checkpoint.entries import Keep
from trajload.checkpoint.store import ABANDONED_AFTER_S
from trajload.errors import CheckpointAbortedError, CheckpointError

obstore = pytest.importorskip("obstore")
from obstore.store import MemoryStore  # noqa: E402

objectlab = load(Path(__file__).with_name("objectlab.py"))
opened, keys = objectlab.opened, objectlab.keys


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
