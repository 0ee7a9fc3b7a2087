"""What stands where a file should: folders, pipes, devices, links to nothing, files nobody may read."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import trajload as tl
from trajload.errors import ManifestError, ShardNotFoundError
from trajload.shards.verify import verify

_NOT_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "folder": (Path.mkdir, "it is a folder, expected a regular file"),
    "pipe": (os.mkfifo, "it is a pipe, expected a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, expected a regular file"),
    "loop": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
}


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Interrupt what waits for a pipe: the test fails instead of hanging."""

    def fail(*_: object) -> None:
        raise TimeoutError("still waiting after 300 s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def dataset(demo_dataset: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_dataset, tmp_path / "dataset"))


@pytest.mark.parametrize("kind", _NOT_FILES)
@pytest.mark.parametrize("name", ["shards/000000.tar", "shards/000000.idx"])
def test_shard_or_index_that_is_no_file_is_refused_at_once(dataset: Path, name: str, kind: str) -> None:
    """A pipe in a file's place would be waited for without end, a device read without end."""
    make, words = _NOT_FILES[kind]
    (dataset / name).unlink()
    make(dataset / name)
    with pytest.raises(ShardNotFoundError) as caught:
        tl.open(dataset)
    assert caught.value.message == f"file {str(dataset / name)!r} cannot be opened: {words}. Restore it."
    assert caught.value.at.shard == "shards/000000.tar"
    problems = [p for p in verify(dataset).problems if p.file == name]
    assert [p.kind for p in problems] == ["missing"]
    assert problems[0].message.startswith(f"file cannot be read: {words}.")


@pytest.mark.parametrize("kind", _NOT_FILES)
def test_manifest_that_is_no_file_is_refused_at_once(dataset: Path, kind: str) -> None:
    """The message says what stands there; it does not say that the folder is of an unknown layout."""
    make, words = _NOT_FILES[kind]
    (dataset / "manifest.json").unlink()
    make(dataset / "manifest.json")
    with pytest.raises(ManifestError) as caught:
        tl.open(dataset)
    assert caught.value.message.startswith(f"file {str(dataset / 'manifest.json')!r} cannot be read: {words}.")
    assert [p.kind for p in verify(dataset).problems if p.severity == "error"] == ["manifest"]


@pytest.mark.parametrize("kind", _NOT_FILES)
def test_statistics_that_are_no_file_are_refused_when_asked_for(dataset: Path, kind: str) -> None:
    """The dataset opens, since batches do not need them."""
    make, words = _NOT_FILES[kind]
    (dataset / "stats.json").unlink()
    make(dataset / "stats.json")
    opened = tl.open(dataset)
    with pytest.raises(ShardNotFoundError) as caught:
        opened.stats()
    assert caught.value.message == f"file {str(dataset / 'stats.json')!r} cannot be opened: {words}. Restore it."
    assert [(p.file, p.kind) for p in verify(dataset).problems] == [("stats.json", "missing")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["shards/000000.tar", "shards/000000.idx", "stats.json"])
def test_file_nobody_may_read_is_reported_by_verify(dataset: Path, name: str) -> None:
    """Damage is reported, never raised; one unreadable file does not hide the next."""
    (dataset / name).chmod(0)
    assert {(p.file, p.kind) for p in verify(dataset).problems} >= {
        (name, "missing" if name != "shards/000000.idx" else "index")
    }


def test_dangling_manifest_is_told_as_such(dataset: Path) -> None:
    """Model hubs lay datasets out as links; a blob that was cleaned away leaves a link to nothing."""
    (dataset / "manifest.json").unlink()
    (dataset / "manifest.json").symlink_to("blob-that-is-gone")
    with pytest.raises(ManifestError, match="cannot be read: No such file or directory"):
        tl.open(dataset)
