"""Atomic writing: order of calls, and nothing half-done."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trajload.storage.atomic import write_atomic


def test_content_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync of the file, then rename, then fsync of the folder: any other order can lose the file with the power."""
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(fd: int) -> None:
        calls.append("fsync " + Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    def spy_replace(a: Any, b: Any) -> None:
        calls.append(f"rename {Path(a).name} {Path(b).name}")
        replace(a, b)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "replace", spy_replace)
    write_atomic(tmp_path / "x.json", b"{}")
    assert calls == ["fsync x.json.tmp", "rename x.json.tmp x.json", f"fsync {tmp_path.name}"]


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk fails before the rename, readers see the old file."""
    (tmp_path / "x").write_bytes(b"old")

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_folder_in_the_way_leaves_no_temporary_file(tmp_path: Path) -> None:
    """What cannot be renamed is taken away again."""
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "x", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
