"""Bits that flip and files that are cut: always noticed, and the checkpoint before is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from crashlab.damage import damage, files_of, make_store

from trajload.checkpoint.store import Store


def test_every_flipped_bit_and_cut_file_is_noticed(memory_folder: Path) -> None:
    """1,000 single bits over all files of a checkpoint, and each file cut at each 4 KiB and by one byte."""
    make_store(memory_folder / "root")
    found = damage(memory_folder / "root", num_flips=1000, cut_every=4096)
    assert found.undetected == []
    assert found.astray == []
    assert found.num_flips == 1000
    assert found.num_cuts >= 20


def test_check_of_sizes_alone_lets_flipped_bits_pass(memory_folder: Path) -> None:
    """The harness tells a weaker reader from the real one."""
    make_store(memory_folder / "root")
    found = damage(memory_folder / "root", 40, 4096, newest=lambda root: Store(root).newest(verify="sizes"))
    assert found.undetected


@pytest.mark.parametrize("name", ["LATEST", "writer.lock"])
def test_damage_to_what_only_hints_changes_nothing(name: str, memory_folder: Path) -> None:
    """Gone, empty, torn or of another store: the newest checkpoint is found by the records."""
    store = make_store(memory_folder / "root")
    whole = (store.root / name).read_bytes()
    for data in (None, b"", whole[: len(whole) // 2], b"\x00" * len(whole), b'{"seq": 99, "digest": "sha256:00"}\n'):
        (store.root / name).unlink(missing_ok=True)
        if data is not None:
            (store.root / name).write_bytes(data)
        newest, faults = Store(store.root).newest()
        assert newest is not None and newest.step == 40 and faults == []


def test_checkpoint_consists_of_more_than_its_own_folder(memory_folder: Path) -> None:
    """The files that are damaged above include those that it refers to in older generations."""
    store = make_store(memory_folder / "root")
    newest, _ = store.newest()
    assert newest is not None
    shared = [path for path, steps in files_of(store, newest).items() if steps == {20, 30, 40}]
    assert len(shared) == 2
