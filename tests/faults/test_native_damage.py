"""A damaged native dataset is refused when opened or read, by name and with what to do; never read wrongly."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damaging
import numpy as np
import pytest

from trajload.errors import ManifestError, ShardCorruptError, ShardNotFoundError
from trajload.refs import ByteRange
from trajload.shards.writer import Writer
from trajload.sources.native import open_native
from trajload.spec import StreamSpec
from trajload.types import Modality

SPECS = [
    StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(2,), dtype="float32"),
    StreamSpec(
        name="imu", modality=Modality.PROPRIOCEPTION, encoding="npy.zst", shape=(), dtype="int32", clock="clocked"
    ),
]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
SHARD, INDEX = "shards/000000.tar", "shards/000000.idx"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "d"
    with Writer(path, streams=SPECS, step_rate_hz=10, shard_bytes=20_000) as writer:
        for i in range(8):
            values = {"state": np.full((5, 2), i, np.float32), "imu": np.arange(7, dtype=np.int32)}
            writer.add_episode(values, timestamps_ns={"imu": np.arange(7) * 1000 + i}, terminated=True)
    return path


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "d"))


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], None], *, seal: bool = True) -> None:
    """Change the manifest's JSON; `seal` gives it the digest that fits."""
    obj = json.loads((folder / "manifest.json").read_text())
    edit(obj)
    if seal:
        damaging.seal(folder, obj)
    else:
        (folder / "manifest.json").write_text(json.dumps(obj))


def test_a_truncated_shard_is_refused_with_both_sizes(folder: Path) -> None:
    """One byte short is seen when the dataset is opened, without reading the shard."""
    size = (folder / SHARD).stat().st_size
    with open(folder / SHARD, "r+b") as handle:
        handle.truncate(size - 1)
    with pytest.raises(
        ShardCorruptError, match=f"'{SHARD}' is truncated: got {size - 1} bytes, expected {size}"
    ) as info:
        open_native(folder)
    assert info.value.at.shard == SHARD and info.value.at.dataset == str(folder)


def test_a_grown_shard_is_refused(folder: Path) -> None:
    """A shard is immutable; one that is longer is another file."""
    size = (folder / SHARD).stat().st_size
    with open(folder / SHARD, "ab") as handle:
        handle.write(b"x")
    with pytest.raises(ShardCorruptError, match=f"has grown: got {size + 1} bytes, expected {size}"):
        open_native(folder)


def test_a_shard_truncated_while_open_is_told_when_read(folder: Path) -> None:
    """The range that is gone raises; one that is still there is read."""
    dataset = open_native(folder)
    track = dataset.track(1, "state")
    with open(folder / SHARD, "r+b") as handle:
        handle.truncate(track.offset + 4)  # type: ignore[union-attr]
    assert len(dataset.store.read(ByteRange(SHARD, track.offset, 4))) == 4  # type: ignore[union-attr]
    with pytest.raises(ShardCorruptError, match=f"'{SHARD}' is truncated: got {track.offset + 4} bytes"):  # type: ignore[union-attr]
        dataset.store.read(ByteRange(SHARD, track.offset, track.num_rows * track.row_bytes))  # type: ignore[union-attr]
    dataset.close()


@pytest.mark.parametrize("file", [SHARD, INDEX])
def test_a_missing_file_is_named_with_the_cure(folder: Path, file: str) -> None:
    """An index can be rebuilt, a shard must be restored."""
    (folder / file).unlink()
    with pytest.raises(ShardNotFoundError, match=f"{file}' does not exist") as info:
        open_native(folder)
    assert ("rebuild_index" in str(info.value)) == (file == INDEX)
    assert info.value.at.shard == SHARD


@pytest.mark.parametrize(
    ("file", "error"), [("manifest.json", ManifestError), (SHARD, ShardCorruptError), (INDEX, ShardCorruptError)]
)
def test_a_git_lfs_pointer_is_told_as_such(folder: Path, file: str, error: type[Exception]) -> None:
    """The message is the command, not a parse error or a size."""
    (folder / file).write_bytes(POINTER)
    with pytest.raises(error, match=f"{file}' is a Git LFS pointer, not the file itself; run 'git lfs pull'"):
        open_native(folder)


def test_pointer_statistics_are_told_as_such(folder: Path) -> None:
    """stats.json is read when asked for."""
    (folder / "stats.json").write_bytes(POINTER)
    with pytest.raises(ManifestError, match=r"'stats.json' is a Git LFS pointer"):
        open_native(folder).stats()


def test_a_newer_version_says_upgrade(folder: Path) -> None:
    """Both versions stand in the message, even if the rest is unknown to this one."""
    edit_manifest(folder, lambda obj: obj.update(format_version=7, shards="elsewhere"), seal=False)
    with pytest.raises(ManifestError, match=r"format version 7, but this trajload reads up to version 1; upgrade"):
        open_native(folder)


@pytest.mark.parametrize("name", ["../x.tar", "/etc/passwd", "shards/../../x.tar"])
def test_a_name_that_leaves_the_folder_is_refused(folder: Path, name: str) -> None:
    """Also where digest and checksums are right: metadata decide no path outside."""
    (folder.parent / "x.tar").write_bytes((folder / SHARD).read_bytes())
    edit_manifest(folder, lambda obj: obj["shards"][0].update(name=name))
    with pytest.raises(ManifestError, match=f"field 'name' of shard 0 of the manifest: path '{name}' leaves"):
        open_native(folder)


def test_an_edited_manifest_is_refused(folder: Path) -> None:
    """Changing what the data are takes a new digest."""
    edit_manifest(folder, lambda obj: obj.update(name="other"), seal=False)
    with pytest.raises(ManifestError, match="digest does not fit"):
        open_native(folder)


def test_shards_put_in_each_others_place_are_refused(folder: Path) -> None:
    """Two shards of one size: the index's header shows the swap when the dataset is opened."""
    other = INDEX.replace("000000", "000001")
    data = (folder / INDEX).read_bytes()
    assert len(data) == (folder / other).stat().st_size, "the case needs indexes of equal size"
    (folder / INDEX).write_bytes((folder / other).read_bytes())
    (folder / other).write_bytes(data)
    with pytest.raises(ShardCorruptError, match="got header checksum"):
        open_native(folder)


@pytest.mark.parametrize("column", ["episode.num_steps", "episode.terminated"])
def test_a_flipped_bit_in_what_is_read_first_is_found_at_once(folder: Path, column: str) -> None:
    """Lengths and terminal flags are checked against their checksum before anyone trusts them."""
    flip_column(folder, column)
    with pytest.raises(ShardCorruptError, match=f"for column '{column}'"):
        open_native(folder)


@pytest.mark.parametrize(
    ("column", "use"),
    [
        ("stream_time.ns", lambda d: d.stream_times_ns(0, "imu")),
        ("episode.start_ns", lambda d: d.step_times_ns(0, np.arange(2))),
        ("episode.key_text", lambda d: d.episode_key(0)),
        ("npy.data_offset", lambda d: d.track(0, "state")),
        ("chunk.size", lambda d: d.track(0, "imu")),
        ("track.num_rows", lambda d: d.track(0, "imu")),
    ],
)
def test_a_flipped_bit_in_the_index_is_found_when_used(folder: Path, column: str, use: Callable[[Any], Any]) -> None:
    """Nothing of the index is trusted unchecked: times, keys, offsets."""
    flip_column(folder, column)
    dataset = open_native(folder)
    with pytest.raises(ShardCorruptError, match=f"for column '{column}'"):
        use(dataset)
    dataset.close()


def flip_column(folder: Path, column: str) -> None:
    """Flip one bit in the data of a column of the first index."""
    data = (folder / INDEX).read_bytes()
    header_bytes = int.from_bytes(data[:8], "little")
    begin, end = json.loads(data[8 : 8 + header_bytes])[column]["data_offsets"]
    assert end > begin
    damaging.flip(folder / INDEX, 8 + header_bytes + begin)


def test_counts_that_do_not_fit_are_refused(folder: Path) -> None:
    """A manifest sealed with other counts than the index has."""

    def edit(obj: dict[str, Any]) -> None:
        obj["shards"][0]["num_steps"] += 1
        obj["num_steps"] += 1

    edit_manifest(folder, edit)
    with pytest.raises(
        ShardCorruptError, match=r"got \d+ episodes and (\d+) steps, expected \d+ and \d+, no episode empty"
    ):
        open_native(folder)


def test_a_stream_whose_spec_was_changed_is_refused(folder: Path) -> None:
    """A sealed manifest that declares another dtype would read bytes past the rows' end: the last one is caught."""
    edit_manifest(folder, lambda obj: obj["streams"][0].update(dtype=">f4"))
    with pytest.raises(ManifestError, match=r"streams are unusable: stream 'state' has dtype='>f4'"):
        open_native(folder)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    """An empty folder, a file, nothing at all."""
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(ManifestError, match=r"manifest.json' cannot be read"):
            open_native(path)
