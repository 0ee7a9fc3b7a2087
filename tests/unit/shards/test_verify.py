"""`verify` finds what is wrong and where; `rebuild_index` brings an index back byte for byte."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaging import flip, seal_index

from trajload.errors import ConfigError, ManifestError, ShardCorruptError, ShardNotFoundError
from trajload.manifest import read_manifest
from trajload.shards.index import ShardIndex
from trajload.shards.rebuild import rebuild_index
from trajload.shards.verify import verify
from trajload.shards.writer import Writer
from trajload.sources.native import open_native
from trajload.spec import StreamSpec
from trajload.types import Modality


@pytest.fixture
def folder(every_encoding: Any, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(every_encoding.path, tmp_path / "data"))


def test_an_untouched_dataset_verifies(every_encoding: Any) -> None:
    """Nothing is found, everything is counted, and progress ends at its total."""
    calls: list[tuple[int, int]] = []
    report = verify(every_encoding.path, progress=lambda done, total: calls.append((done, total)))
    assert report.ok and report.problems == []
    with tarfile.open(every_encoding.path / "shards" / "000000.tar") as tar:
        assert report.num_members == len(tar.getnames())
    assert (report.num_shards, report.num_episodes, report.num_steps) == (1, 3, 21)
    assert report.num_gops == 2 * (3 + 2), "two cameras, 11 and 6 frames, a keyframe every 4"
    assert report.digest == open_native(every_encoding.path).digest
    assert calls[-1][0] == calls[-1][1] and [c[0] for c in calls] == sorted(c[0] for c in calls)
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


def test_a_shallow_look_reads_no_shard(folder: Path) -> None:
    """deep=False does not see a flipped bit, and says that it was not deep."""
    flip(folder / "shards" / "000000.tar", 3000)
    report = verify(folder, deep=False)
    assert report.ok and not report.is_deep and report.num_members == 0 and report.num_episodes == 3
    assert not verify(folder).ok


def members_of(path: Path) -> list[tuple[str, int, int]]:
    with tarfile.open(path) as tar:
        return [(info.name, info.offset_data, info.size) for info in tar]


@pytest.mark.parametrize(
    ("member", "stream"),
    [
        ("ep-0.trajload.json", None),
        ("000002.trajload.step_times_ns.npy", None),
        ("ep-1.state.npy", "state"),
        ("ep-1.reward.npy", "reward"),
        ("ep-0.heights.npy.zst", "heights"),
        ("ep-1.cam.wrist.000004.jpg", "cam.wrist"),
        ("ep-0.depth.000000.png", "depth"),
        ("ep-0.cam.front.mp4", "cam.front"),
        ("ep-1.cam.back.mkv", "cam.back"),
        ("ep-0.imu.timestamps_ns.npy", "imu"),
        ("ep-0.imu.npy", "imu"),
        ("ep-1.task.txt", "task"),
        ("ep-1.note.json", "note"),
        ("ep-1.scene.json", "scene"),
    ],
)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_flipped_bit_is_found_in_every_kind_of_member(
    folder: Path, member: str, stream: str | None, where: str
) -> None:
    """The report names shard, episode and stream, once for the member and once for the file."""
    shard = folder / "shards" / "000000.tar"
    offset, size = next((o, s) for name, o, s in members_of(shard) if name == member)
    flip(shard, offset + {"first": 0, "middle": size // 2, "last": size - 1}[where])
    report = verify(folder)
    assert not report.ok
    assert [(p.kind, p.file, p.episode, p.stream) for p in report.problems] == [
        ("sha256", "shards/000000.tar", None, None),
        ("checksum", "shards/000000.tar", member.split(".")[0], stream),
    ]
    assert f"member at byte {offset} is changed" in report.problems[1].message


def test_a_flipped_bit_in_a_header_or_padding_is_found(folder: Path) -> None:
    """Headers are compared with the index; padding only the file's SHA-256 covers."""
    shard = folder / "shards" / "000000.tar"
    name, offset, _ = members_of(shard)[3]
    good = shard.read_bytes()
    flip(shard, offset - 512)  # the name's first letter
    kinds = [p.kind for p in verify(folder).problems]
    assert kinds == ["sha256", "tar"], name
    shard.write_bytes(good)
    flip(shard, len(good) - 1)
    assert [p.kind for p in verify(folder).problems] == ["sha256", "tar"]


def test_every_flipped_bit_of_the_index_is_found(folder: Path) -> None:
    """Sampled over the whole file: header, columns, nothing is left out."""
    index = folder / "shards" / "000000.idx"
    good = index.read_bytes()
    for position in range(0, len(good), 211):
        flip(index, position)
        problems = verify(folder, deep=False).problems
        assert [p.kind for p in problems] == ["index"], position
        index.write_bytes(good)


def test_a_truncated_shard_names_the_episodes_lost(folder: Path) -> None:
    """Size with got and expected, then each member that is gone."""
    shard = folder / "shards" / "000000.tar"
    size = shard.stat().st_size
    offset = next(o for name, o, _ in members_of(shard) if name == "000002.state.npy")
    with open(shard, "r+b") as handle:
        handle.truncate(offset)
    report = verify(folder)
    assert report.problems[0].kind == "size"
    assert f"file is truncated: got {offset} bytes, expected {size}" in report.problems[0].message
    assert [(p.kind, p.episode) for p in report.problems[1:]] == [("size", "000002"), ("tar", None)]


@pytest.mark.parametrize("file", ["shards/000000.tar", "shards/000000.idx", "stats.json", "stats-sketch.safetensors"])
def test_missing_files_and_pointers_are_told_apart(folder: Path, file: str) -> None:
    """A file that is gone, and one that git-lfs has not fetched."""
    (folder / file).unlink()
    problem = verify(folder).problems[0]
    assert (problem.kind, problem.file) == ("missing", file)
    assert ("rebuild_index" in problem.message) == file.endswith(".idx")
    (folder / file).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    problem = verify(folder).problems[0]
    assert (problem.kind, problem.file) == ("lfs-pointer", file) and "git lfs pull" in problem.message


def test_changed_statistics_are_found(folder: Path) -> None:
    """stats.json is part of the digest."""
    flip(folder / "stats.json", 20)
    assert [(p.kind, p.file) for p in verify(folder).problems] == [("stats", "stats.json")]
    with pytest.raises(ManifestError, match=r"'stats.json' has SHA-256"):
        open_native(folder).stats()


def test_leftovers_are_warnings(folder: Path) -> None:
    """What a killed Writer left does not damage the dataset, and is named."""
    (folder / "shards" / "000001.tar.tmp").write_bytes(b"x")
    (folder / "shards" / "000007.tar").write_bytes(b"x")
    (folder / "manifest.json.tmp").write_bytes(b"x")
    report = verify(folder)
    assert report.ok and {p.severity for p in report.problems} == {"warning"}
    assert [p.file for p in report.problems] == ["manifest.json.tmp", "shards/000001.tar.tmp", "shards/000007.tar"]
    assert "file=shards/000007.tar" in str(report.problems[2])


def test_no_manifest_is_a_problem_not_an_exception(tmp_path: Path) -> None:
    """verify of any folder gives a report."""
    report = verify(tmp_path)
    assert not report.ok and report.problems[0].kind == "manifest"
    assert not verify(tmp_path / "nowhere").ok


def tampered(folder: Path, column: str, change: Any) -> bytes:
    """Return the index with one column changed and its checksums made to fit."""
    from trajload.shards.columns import columns_to_parts

    index = ShardIndex(folder / "shards" / "000000.idx")
    columns = {name: np.array(index.column(name)) for name in index.column_names}
    change(columns[column])
    metadata = {k: v for k, v in index._file.metadata.items() if k != "checksums"}
    return b"".join(columns_to_parts(columns, metadata))


def add_to_first(value: int) -> Any:
    def change(column: np.ndarray) -> None:
        column[0] += value

    return change


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("member.offset", 512, "is changed"),
        ("member.offset", 1 << 40, "leaves the shard"),
        ("member.offset", -(1 << 40), "leaves the shard"),
        ("member.size", -(1 << 40), "leaves the shard"),
        ("npy.data_offset", 4, "expected"),
        ("npy.data_offset", 1 << 40, "leave the shard"),
        ("npy.checksum", 1, "do not have the checksum"),
        ("track.num_rows", -1, "rows in the index, expected 11"),
        ("track.member", 1 << 40, "tracks name other members than their own"),
        ("track.detail", -5, "do not name the rows of 'npy.checksum'"),
        ("track.encoding", 100, "track 0 has an unknown encoding"),
        ("zst.rows_per_chunk", -(1 << 40), "chunks of"),
        ("chunk.offset", 1, "chunk 0 of the npy.zst member"),
        ("packet.offset", 1, "group of pictures 0"),
        ("packet.size", 1 << 40, "leaves the shard"),
        ("frame.packet", 1 << 40, "beyond its 11 packets"),
        ("gop.checksum", 1, "group of pictures 0, packets [0, 4)"),
        ("video.profile", 99, "lie beyond"),
        ("stream_time.ns", -1, "times in the index differ"),
        ("step_time.ns", -1, "times in the index differ"),
        ("episode.terminated", 1, "terminated differs: got True in the index, False in the tar"),
        ("episode.start_ns", 7, "step_clock differs"),
        ("episode.track_offset", 99, "does not rise from 0 to the 23 rows"),
        ("episode.metadata_text", 1, "not JSON"),
        ("profile.text", 1, "video profile 0 is unusable"),
    ],
)
def test_an_index_with_fitting_checksums_is_still_checked(folder: Path, column: str, value: int, message: str) -> None:
    """An index that contradicts its shard is found even where its own checksums and the manifest vouch for it."""
    seal_index(folder, tampered(folder, column, add_to_first(value)))
    report = verify(folder)
    assert not report.ok
    assert any(message in problem.message for problem in report.problems), [str(p) for p in report.problems]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("gop.checksum"), "it lacks column 'gop.checksum'"),
        (lambda c: c.update({"packet.pts": c["packet.pts"].astype(np.int32)}), "'packet.pts' is int32, expected int64"),
        (lambda c: c.update({"member.size": c["member.size"][1:]}), "'member.size' has 58 rows, expected 59"),
        (lambda c: c.update({"packet.dts": c["packet.dts"][1:]}), "of 'video.packet_offset' differ in length"),
        (lambda c: c.update({"zst.chunk_offset": c["zst.chunk_offset"][:0]}), "'zst.chunk_offset' has -1 rows"),
    ],
)
def test_an_index_of_another_make_is_refused_when_opened(folder: Path, change: Any, message: str) -> None:
    """Columns that are absent, of another dtype, or of unequal length are seen from the header alone."""
    from trajload.shards.columns import columns_to_parts

    index = ShardIndex(folder / "shards" / "000000.idx")
    columns = {name: np.array(index.column(name)) for name in index.column_names}
    change(columns)
    metadata = {k: v for k, v in index._file.metadata.items() if k != "checksums"}
    seal_index(folder, b"".join(columns_to_parts(columns, metadata)))
    with pytest.raises(ShardCorruptError, match=message):
        open_native(folder)


def test_a_key_used_twice_is_found(tmp_path: Path) -> None:
    """Across shards too, where only the whole dataset shows it."""
    spec = StreamSpec(name="x", modality=Modality.ACTION, encoding="npy", shape=(), dtype="int64")
    with Writer(tmp_path / "d", streams=[spec], step_rate_hz=1) as writer:
        writer.add_episode({"x": [1]}, key="a")
    with Writer(tmp_path / "d", append=True) as writer:
        writer._keys.clear()  # a writer that does not look
        writer.add_episode({"x": [2]}, key="a")
    problem = verify(tmp_path / "d").problems[0]
    assert (problem.kind, problem.file, problem.episode) == ("content", "shards/000001.tar", "a")
    assert "not unique: an episode of 'shards/000000.tar'" in problem.message


def test_a_missing_index_is_rebuilt_byte_for_byte(folder: Path) -> None:
    """Everything the index says stands in the tar; the manifest and its digest stay."""
    index = folder / "shards" / "000000.idx"
    good, digest = index.read_bytes(), read_manifest(folder).digest
    index.unlink()
    with pytest.raises(ShardNotFoundError, match=r"000000.idx' does not exist.*rebuild_index"):
        open_native(folder)
    assert rebuild_index(folder) == ["shards/000000.idx"]
    assert index.read_bytes() == good and read_manifest(folder).digest == digest
    assert verify(folder).problems == []


def test_a_damaged_index_is_rebuilt_and_a_good_one_left(folder: Path) -> None:
    """Only what cannot be used is made anew, unless asked for by name."""
    index = folder / "shards" / "000000.idx"
    assert rebuild_index(folder) == []
    good = index.read_bytes()
    flip(index, len(good) // 2)
    assert rebuild_index(folder) == ["shards/000000.idx"] and index.read_bytes() == good
    assert rebuild_index(folder, shards=["shards/000000.tar"]) == ["shards/000000.idx"]
    with pytest.raises(ConfigError, match=r"shards names 'x': expected one of 'shards/000000.tar'"):
        rebuild_index(folder, shards=["x"])


def test_a_damaged_shard_gives_no_index(folder: Path) -> None:
    """An index of damaged data would hide the damage."""
    (folder / "shards" / "000000.idx").unlink()
    flip(folder / "shards" / "000000.tar", 5000)
    with pytest.raises(ShardCorruptError, match=r"an index of damaged data would hide"):
        rebuild_index(folder)
    (folder / "shards" / "000000.tar").unlink()
    with pytest.raises(ShardNotFoundError, match="its index cannot be rebuilt"):
        rebuild_index(folder)


def test_an_index_that_comes_out_otherwise_needs_consent(folder: Path) -> None:
    """Where the manifest knows another index, only accept_changed writes it, with a new digest."""
    seal_index(folder, tampered(folder, "episode.start_ns", add_to_first(7)))
    (folder / "shards" / "000000.idx").unlink()
    digest = read_manifest(folder).digest
    with pytest.raises(ShardCorruptError, match="Pass accept_changed=True"):
        rebuild_index(folder)
    assert rebuild_index(folder, accept_changed=True) == ["shards/000000.idx"]
    assert read_manifest(folder).digest != digest and verify(folder).problems == []
