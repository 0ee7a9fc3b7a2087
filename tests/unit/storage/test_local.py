"""Local byte ranges."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from trajload.errors import ConfigError, ShardCorruptError, ShardNotFoundError
from trajload.refs import ByteRange
from trajload.storage import ByteStore, LocalStore
from trajload.storage.lfs import is_lfs_pointer, is_lfs_pointer_file

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.bin").write_bytes(bytes(range(100)))
    store = LocalStore(tmp_path)
    yield store
    store.close()


def test_local_store_is_a_byte_store(store: LocalStore) -> None:
    """The class has what the contract names."""
    assert isinstance(store, ByteStore)


def test_read_returns_exactly_the_range(store: LocalStore) -> None:
    """Offset and size are honoured, also at the end and for nothing."""
    assert store.read(ByteRange("sub/a.bin", 10, 5)) == bytes(range(10, 15))
    assert store.read(ByteRange("sub/a.bin", 95, 5)) == bytes(range(95, 100))
    assert store.read(ByteRange("sub/a.bin", 100, 0)) == b""
    assert store.size("sub/a.bin") == 100


def test_read_beyond_the_end_names_got_and_expected(store: LocalStore) -> None:
    """A short file is corrupt, never a short result."""
    with pytest.raises(ShardCorruptError, match=r"'sub/a.bin' is truncated: got 100 bytes, expected at least 105"):
        store.read(ByteRange("sub/a.bin", 95, 10))


def test_a_missing_file_is_named(store: LocalStore) -> None:
    """Also where a folder of its path is a file; the error is a FileNotFoundError too."""
    for file in ("none.bin", "sub/a.bin/b"):
        with pytest.raises(ShardNotFoundError, match=f"{file}' does not exist") as info:
            store.size(file)
        assert isinstance(info.value, FileNotFoundError)


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a/../../x", "", "a\0b"])
def test_a_name_that_leaves_the_folder_is_refused(store: LocalStore, file: str) -> None:
    """No file outside the root is opened, whatever metadata say."""
    with pytest.raises(ConfigError, match="leaves the dataset folder"):
        store.read(ByteRange(file, 0, 1))


def test_a_truncated_pointer_is_told_as_git_lfs(store: LocalStore, tmp_path: Path) -> None:
    """Who never fetched the file learns the command, not that bytes are missing."""
    (tmp_path / "p.tar").write_bytes(POINTER)
    with pytest.raises(
        ShardCorruptError, match=r"'p.tar' is a Git LFS pointer, not the file itself; run 'git lfs pull'"
    ):
        store.read(ByteRange("p.tar", 4096, 10))


def test_lfs_pointers_are_told_from_data(tmp_path: Path) -> None:
    """Pointer text is recognised by its first line; absent files and data are not pointers."""
    (tmp_path / "p").write_bytes(POINTER)
    (tmp_path / "d").write_bytes(b"version of something else")
    assert is_lfs_pointer(POINTER) and is_lfs_pointer_file(tmp_path / "p")
    assert not is_lfs_pointer_file(tmp_path / "d") and not is_lfs_pointer_file(tmp_path / "none")


def test_open_files_are_bounded_and_closed(tmp_path: Path) -> None:
    """Reading 200 files keeps at most 128 open; close lets go of all, and reading goes on after it."""
    for i in range(200):
        (tmp_path / f"{i}.bin").write_bytes(bytes([i]))
    before = len(os.listdir("/proc/self/fd"))
    store = LocalStore(tmp_path)
    assert [store.read(ByteRange(f"{i}.bin", 0, 1)) for i in range(200)] == [bytes([i]) for i in range(200)]
    assert len(os.listdir("/proc/self/fd")) - before == 128
    store.close()
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert store.read(ByteRange("7.bin", 0, 1)) == b"\x07"
    store.close()


def test_a_store_survives_pickling(store: LocalStore) -> None:
    """A copy in another process reads the same files."""
    assert pickle.loads(pickle.dumps(store)).read(ByteRange("sub/a.bin", 1, 2)) == b"\x01\x02"
