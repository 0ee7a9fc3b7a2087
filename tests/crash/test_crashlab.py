"""The tools themselves: a recorder that forgets, or a model that loses too little, would prove nothing."""

from __future__ import annotations

import os
from pathlib import Path

from crashlab.recorder import Op, Recorder
from crashlab.shelf import Shelf
from crashlab.states import BLOCK, Model, states


def _tree_on_disk(root: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(root)): None if p.is_dir() else p.read_bytes() for p in root.rglob("*")}


def _write(path: Path, data: bytes, *, sync: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(fd, data)
    if sync:
        os.fsync(fd)
    os.close(fd)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def _model(ops: list[Op]) -> Model:
    model = Model()
    for op in ops:
        model.apply(op)
    return model


def test_replaying_everything_gives_the_folder_that_was_recorded(tmp_path: Path) -> None:
    """New files, folders, links, renames over others, removals, and inode numbers that come again."""
    recorder = Recorder(tmp_path)
    with recorder.recording():
        os.mkdir(tmp_path / "a")
        _write(tmp_path / "a" / "one", b"1" * 9000, sync=True)
        os.link(tmp_path / "a" / "one", tmp_path / "a" / "two")
        os.unlink(tmp_path / "a" / "one")
        _write(tmp_path / "x", b"x", sync=False)
        _write(tmp_path / "y", b"y", sync=False)
        os.replace(tmp_path / "x", tmp_path / "y")
        _write(tmp_path / "z", b"z", sync=False)
        os.mkdir(tmp_path / "b")
        os.rmdir(tmp_path / "b")
        os.mkdir(tmp_path / "c")
        fd = os.open(tmp_path / "z", os.O_RDWR)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"note", 0)
        os.close(fd)
    assert _model(recorder.ops).tree(frozenset()) == _tree_on_disk(tmp_path)


def test_what_was_synced_is_in_every_state(tmp_path: Path) -> None:
    """A file whose content and name were synced is whole wherever the cut comes after."""
    recorder = Recorder(tmp_path)
    with recorder.recording():
        _write(tmp_path / "safe", b"s" * 5000, sync=True)
        _sync_folder(tmp_path)
        _write(tmp_path / "loose", b"l", sync=False)
    after = [s for s in states(recorder.ops, 100) if s.prefix == len(recorder.ops)]
    assert all(state.tree["safe"] == b"s" * 5000 for state in after)
    assert {tuple(sorted(state.tree)) for state in after} == {("safe",), ("loose", "safe")}


def test_each_part_of_what_was_not_synced_may_be_missing(tmp_path: Path) -> None:
    """A name without content, content cut or zeroed at a 4 KiB block, and no name at all."""
    recorder = Recorder(tmp_path)
    with recorder.recording():
        _write(tmp_path / "f", b"f" * (BLOCK + 10), sync=False)
    found = {state.tree.get("f") for state in states(recorder.ops, 100)}
    first, second = b"f" * BLOCK, b"f" * 10
    assert found == {
        None, b"", first + second, first, first + bytes(10), bytes(BLOCK) + second, bytes(BLOCK + 10),
    }  # fmt: skip


def test_a_name_is_not_made_durable_by_a_sync_of_the_file(tmp_path: Path) -> None:
    """Only a sync of the folder does that."""
    recorder = Recorder(tmp_path)
    with recorder.recording():
        _write(tmp_path / "f", b"f", sync=True)
    assert {} in [state.tree for state in states(recorder.ops, 100) if state.prefix == len(recorder.ops)]


def test_a_rename_that_is_lost_leaves_the_old_file(tmp_path: Path) -> None:
    """Both names as they were, or the new one in place of the old."""
    _write(tmp_path / "old", b"", sync=False)
    (tmp_path / "old").unlink()
    recorder = Recorder(tmp_path)
    with recorder.recording():
        _write(tmp_path / "old", b"old", sync=True)
        _write(tmp_path / "new", b"new", sync=True)
        _sync_folder(tmp_path)
        os.replace(tmp_path / "new", tmp_path / "old")
    after = [state.tree for state in states(recorder.ops, 100) if state.prefix == len(recorder.ops)]
    assert sorted(after, key=len) == [{"old": b"new"}, {"new": b"new", "old": b"old"}]


def test_shelf_shows_each_tree_exactly_whatever_a_reader_left(tmp_path: Path) -> None:
    """Between two trees a reader may have made, changed and removed files."""
    shelf = Shelf(tmp_path / "shelf")
    trees = [{"a": None, "a/f": b"1", "g": b"2"}, {"a": b"file"}, {"a": None, "a/f": b"1", "a/b": None}, {}]
    for tree in [*trees, *reversed(trees)]:
        shelf.show(tree)
        assert _tree_on_disk(tmp_path / "shelf") == tree
        (tmp_path / "shelf" / "stray").mkdir()
        (tmp_path / "shelf" / "stray" / "file").write_bytes(b"stray")
        for path in tree:
            if (tmp_path / "shelf" / path).is_file():
                (tmp_path / "shelf" / path).write_bytes(b"longer than before")


def test_states_left_out_are_states_of_an_earlier_prefix(tmp_path: Path) -> None:
    """Where the process was told nothing new, leaving them out loses none."""
    recorder = Recorder(tmp_path)
    with recorder.recording():
        os.mkdir(tmp_path / "a")
        _write(tmp_path / "a" / "one", b"1" * 5000, sync=True)
        _write(tmp_path / "a" / "two", b"2", sync=False)
        os.link(tmp_path / "a" / "one", tmp_path / "a" / "three")
        _sync_folder(tmp_path / "a")
        os.replace(tmp_path / "a" / "two", tmp_path / "a" / "one")
        os.unlink(tmp_path / "a" / "three")
        _sync_folder(tmp_path)
        _write(tmp_path / "b", b"b", sync=True)

    def trees(told: set[int] | None) -> list[frozenset[object]]:
        return [frozenset(state.tree.items()) for state in states(recorder.ops, 1 << 12, told=told)]

    assert set(trees(set())) == set(trees(None))
    assert len(trees(set())) < len(trees(None))
