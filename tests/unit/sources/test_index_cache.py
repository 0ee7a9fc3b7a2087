"""Packet tables kept between runs: used only for the very file they were built from."""

from __future__ import annotations

import os
import pickle
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from damaging import flip

from trajload.errors import ShardNotFoundError
from trajload.refs import VideoIndex
from trajload.shards.video_index import build_video_index
from trajload.sources.index_cache import IndexCache, default_cache_dir, file_identity


@pytest.fixture
def video(tmp_path: Path, maker) -> Path:
    path = tmp_path / "data" / "a.mp4"
    maker.write_video(path, [maker.picture(0, s) for s in range(15)])
    return path


def assert_same_index(one: VideoIndex, two: VideoIndex) -> None:
    for field in fields(VideoIndex):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        else:
            assert a == b, field.name


def entries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def test_second_cache_object_reads_what_the_first_wrote(tmp_path, video):
    """The table from the cache equals the one built, field by field, and nothing is built again."""
    first = IndexCache(tmp_path / "c")
    assert_same_index(first.get(video), build_video_index(video))
    assert first.num_built == 1
    second = IndexCache(tmp_path / "c")
    assert_same_index(second.get(video), build_video_index(video))
    assert second.num_built == 0


def test_same_object_answers_from_memory(tmp_path, video):
    """A file asked for again gives the same object."""
    cache = IndexCache(tmp_path / "c")
    assert cache.get(video) is cache.get(video)


def test_changed_file_is_indexed_again(tmp_path, video, maker):
    """Other bytes under the same name are another video."""
    IndexCache(tmp_path / "c").get(video)
    maker.write_video(video, [maker.picture(1, s) for s in range(9)])
    again = IndexCache(tmp_path / "c")
    assert again.get(video).num_frames == 9
    assert again.num_built == 1
    assert len(entries(tmp_path / "c")) == 1


def test_changed_bytes_of_same_size_and_mtime_are_noticed_near_the_ends(video):
    """Size and mtime can be forged by copying tools; the first and last 64 KiB cannot."""
    before, stat = file_identity(video), video.stat()
    flip(video, -10)
    os.utime(video, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file_identity(video) != before


@pytest.mark.parametrize("damage", ["truncated", "flipped bit", "empty", "text", "header length"])
def test_corrupt_entry_is_built_again(tmp_path, video, damage):
    """Whatever is wrong with an entry, the answer is the true table."""
    IndexCache(tmp_path / "c").get(video)
    (entry,) = entries(tmp_path / "c")
    data = bytearray(entry.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "flipped bit":
        data[-9] ^= 4
    elif damage == "header length":
        data[5] = 255
    else:
        data = bytearray() if damage == "empty" else bytearray(b"not a table")
    entry.write_bytes(data)
    cache = IndexCache(tmp_path / "c")
    assert_same_index(cache.get(video), build_video_index(video))
    assert cache.num_built == 1
    repaired = IndexCache(tmp_path / "c")
    repaired.get(video)
    assert repaired.num_built == 0


def test_cache_folder_that_cannot_be_made_is_done_without(tmp_path, video):
    """A file in the way of the folder costs speed only; the reason is kept for a note."""
    (tmp_path / "in-the-way").write_text("x")
    cache = IndexCache(tmp_path / "in-the-way" / "c")
    assert cache.get(video).num_frames == 15
    assert cache.problem is not None and "in-the-way/c' cannot be written (Not a directory)" in cache.problem


def test_nothing_is_written_beside_the_data(tmp_path, video):
    """The dataset folder may be read-only: it is left as it is."""
    before = sorted(p.name for p in video.parent.iterdir())
    IndexCache(tmp_path / "c").get(video)
    assert sorted(p.name for p in video.parent.iterdir()) == before


def test_cache_is_bounded_and_drops_the_oldest(tmp_path, maker):
    """More entries than allowed: those written longest ago go."""
    cache = IndexCache(tmp_path / "c", max_entries=2)
    paths = []
    for i in range(4):
        paths.append(tmp_path / f"{i}.mp4")
        maker.write_video(paths[-1], [maker.picture(i, 0)])
        cache.get(paths[-1])
    assert len(entries(tmp_path / "c")) <= 2
    again = IndexCache(tmp_path / "c", max_entries=2)
    again.get(paths[-1])
    assert again.num_built == 0


def test_no_temporary_file_is_left(tmp_path, video):
    """Entries are renamed into place."""
    IndexCache(tmp_path / "c").get(video)
    assert [p.name for p in (tmp_path / "c").rglob(".tmp-*")] == []


def test_absent_video_is_named(tmp_path):
    """A file that is not there is an error about that file, not about the cache."""
    with pytest.raises(ShardNotFoundError, match=r"gone\.mp4' does not exist, but the dataset names it"):
        IndexCache(tmp_path / "c").get(tmp_path / "gone.mp4")


def test_cache_survives_pickling(tmp_path, video):
    """A worker process shares the folder, not the memory."""
    cache = IndexCache(tmp_path / "c", max_entries=7)
    cache.get(video)
    again = pickle.loads(pickle.dumps(cache))
    again.get(video)
    assert (again.num_built, again.max_entries) == (0, 7)


def test_default_folder_follows_xdg_only_where_absolute(monkeypatch, tmp_path):
    """XDG says that relative values are to be ignored."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir() == tmp_path / ".cache" / "trajload"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_cache_dir() == tmp_path / "x" / "trajload"


def test_user_without_a_home_does_without_the_cache(video: Path, monkeypatch: pytest.MonkeyPatch):
    """Containers run under numbers that have no entry and no HOME; the packet table is built each time."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    cache = IndexCache(default_cache_dir())
    assert cache.get(video).num_frames == 15
    assert cache.problem is not None
    assert cache.problem.startswith("packet tables are not kept between runs: the cache folder '/dev/null/no-home")


def test_file_whose_name_is_no_text_is_indexed_and_kept(video: Path, tmp_path: Path):
    """Names on disk are bytes; one that is not UTF-8 is as good as any."""
    odd = video.rename(tmp_path / os.fsdecode(b"caf\xe9.mp4"))
    IndexCache(tmp_path / "cache").get(odd)
    again = IndexCache(tmp_path / "cache")
    assert again.get(odd).num_frames == 15
    assert again.num_built == 0
