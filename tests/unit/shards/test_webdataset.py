"""Shards are what WebDataset, tarfile, numpy and zstd alone can read."""

from __future__ import annotations

import gc
import io
import json
import tarfile
import warnings
from typing import Any

import numpy as np
import pytest
import zstandard

from trajload.shards.writer import Writer
from trajload.sources.native import open_native
from trajload.spec import StreamSpec
from trajload.types import Modality


@pytest.fixture(scope="module")
def records(every_encoding: Any) -> list[dict[str, Any]]:
    """The shard as plain `webdataset` gives it, undecoded."""
    wds = pytest.importorskip("webdataset")
    shard = str(every_encoding.path / "shards" / "000000.tar")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves its file to the garbage collector
        out = list(wds.WebDataset(shard, shardshuffle=False, empty_check=False))
        gc.collect()
    return out


def test_webdataset_groups_members_by_episode(records: list[dict[str, Any]]) -> None:
    """Each WebDataset sample is one episode, under its key."""
    assert [record["__key__"] for record in records] == ["ep-0", "ep-1", "000002"]


def test_webdataset_gives_the_same_bytes(every_encoding: Any, records: list[dict[str, Any]]) -> None:
    """Every stream stands under `stream.ext`, byte for byte what was written."""
    for values, record in zip(every_encoding.episodes[:2], records, strict=False):
        np.testing.assert_array_equal(np.load(io.BytesIO(record["state.npy"])), values["state"])
        np.testing.assert_array_equal(np.load(io.BytesIO(record["imu.npy"])), values["imu"])
        np.testing.assert_array_equal(np.load(io.BytesIO(record["imu.timestamps_ns.npy"])), values["timestamps_ns"])
        assert record["cam.front.mp4"] == values["cam.front"]
        assert record["cam.back.mkv"] == values["cam.back"]
        assert [record[f"cam.wrist.{i:06d}.jpg"] for i in range(len(values["state"]))] == values["cam.wrist"]
        assert record["task.txt"].decode() == values["task"]
        assert json.loads(record["note.json"]) == values["note"]
        assert json.loads(record["scene.json"]) == values["scene"]


def test_webdataset_users_get_times_and_facts(every_encoding: Any, records: list[dict[str, Any]]) -> None:
    """What the index says of an episode also stands in the tar."""
    info = json.loads(records[1]["trajload.json"])
    assert info["num_steps"] == 6 and info["terminated"] is True and info["key"] == "ep-1"
    assert info["step_clock"] == {"rate_hz": [30000, 1001], "start_ns": 5}
    assert info["metadata"] == {"operator": "person 1", "tries": 1}
    times = np.load(io.BytesIO(records[2]["trajload.step_times_ns.npy"]))
    np.testing.assert_array_equal(times, every_encoding.episodes[2]["step_times_ns"])


def test_a_compressed_array_is_zstd_over_npy(every_encoding: Any, records: list[dict[str, Any]]) -> None:
    """Decompressing all frames of npy.zst gives an npy file that numpy loads."""
    reader = zstandard.ZstdDecompressor().stream_reader(records[0]["heights.npy.zst"], read_across_frames=True)
    got = np.load(io.BytesIO(reader.read()))
    np.testing.assert_array_equal(got, every_encoding.episodes[0]["heights"])


def test_tar_headers_say_nothing_of_machine_or_time(every_encoding: Any) -> None:
    """Owner, time and mode are constant."""
    with tarfile.open(every_encoding.path / "shards" / "000000.tar") as tar:
        for info in tar:
            assert (info.uid, info.gid, info.mtime, info.mode, info.uname) == (0, 0, 0, 0o644, "")
            assert info.isreg()


def test_long_and_foreign_names_are_read_back(tmp_path: Any) -> None:
    """Names beyond ustar's 100 ASCII bytes go through pax, for tarfile and for the library."""
    spec = StreamSpec(name="a" * 90, modality=Modality.ACTION, encoding="npy", shape=(), dtype="int64")
    with Writer(tmp_path / "d", streams=[spec], step_rate_hz=1) as writer:
        writer.add_episode({spec.name: [1, 2]}, key="épisode-" + "k" * 60)
    with tarfile.open(tmp_path / "d" / "shards" / "000000.tar") as tar:
        names = tar.getnames()
    assert names == ["épisode-" + "k" * 60 + ".trajload.json", "épisode-" + "k" * 60 + f".{spec.name}.npy"]
    assert open_native(tmp_path / "d").episode_key(0) == "épisode-" + "k" * 60
