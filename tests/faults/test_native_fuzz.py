"""Thousands of small damages to a native dataset: each is found, none escapes as another exception or as wrong data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from damaging import seal_index

from trajload.errors import TrajloadError
from trajload.refs import ArrayTrack, ByteRange, ChunkTrack, ImageTrack, TextTrack
from trajload.shards.columns import columns_to_parts
from trajload.shards.index import ShardIndex
from trajload.shards.verify import verify
from trajload.shards.writer import Writer
from trajload.sources.native import NativeDataset, open_native
from trajload.spec import StreamSpec
from trajload.types import Modality

SPECS = [
    StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(2,), dtype="float32"),
    StreamSpec(name="latent", modality=Modality.METADATA, encoding="npy.zst", shape=(4,), dtype="int16"),
    StreamSpec(name="cam", modality=Modality.RGB, encoding="png", shape=(4, 6, 3), dtype="uint8"),
    StreamSpec(name="note", modality=Modality.LANGUAGE, encoding="json", shape=(), dtype="str"),
    StreamSpec(name="imu", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(), dtype="int32", clock="clocked"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "d"
    with Writer(path, streams=SPECS, step_rate_hz=10) as writer:
        for i in range(3):
            values = {
                "state": np.full((5, 2), i, np.float32),
                "latent": np.full((5, 4), i, np.int16),
                "cam": np.full((5, 4, 6, 3), i, np.uint8),
                "note": list("abcde"),
                "imu": np.arange(7, dtype=np.int32),
            }
            times = None if i else np.arange(5) * 3
            writer.add_episode(
                values, timestamps_ns={"imu": np.arange(7) * 1000 + i}, step_times_ns=times, metadata={"i": i}
            )
    return path


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "d"))


def read(dataset: NativeDataset, file: str, offset: int, size: int, checksum: int | None) -> bytes:
    """Return bytes if they have their checksum, as decoders insist; a marker where they have not."""
    data = dataset.store.read(ByteRange(file, offset, size))
    return data if xxhash.xxh3_64_intdigest(data) == checksum else b"refused"


def everything(dataset: NativeDataset) -> Iterator[Any]:
    """Yield all that a reader can ask of a dataset, as comparable values."""
    for e in range(dataset.num_episodes):
        info = dataset.episode(e)
        yield (info.key, info.num_steps, info.terminated, info.metadata)
        yield dataset.step_times_ns(e, np.arange(info.num_steps)).tolist()
        yield dataset.stream_times_ns(e, "imu").tolist()
        for stream in dataset.streams:
            track = dataset.track(e, stream)
            if isinstance(track, ArrayTrack):
                size = track.num_rows * track.row_bytes
                yield read(dataset, track.file, track.offset, size, track.checksum)
            elif isinstance(track, ChunkTrack):
                places = zip(track.offset_K.tolist(), track.size_K.tolist(), track.checksum_K.tolist(), strict=True)
                yield [read(dataset, track.file, *place) for place in places]
            elif isinstance(track, ImageTrack):
                places = zip(track.offset_N.tolist(), track.size_N.tolist(), track.checksum_N.tolist(), strict=True)
                yield [read(dataset, track.file, *place) for place in places]
            elif isinstance(track, TextTrack):
                yield read(dataset, track.file, track.offset, track.size, track.checksum)
            else:
                yield track


def test_random_damage_to_any_file_is_found(whole: Path, folder: Path) -> None:
    """Bytes changed, cut off, put in or zeroed: verify finds it, and readers get an error, a refusal, or the true value."""
    rng = np.random.Generator(np.random.Philox(11))
    dataset = open_native(whole)
    truth = list(everything(dataset))
    dataset.close()
    files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
    assert len(files) == 5
    num_opened = 0
    for i in range(400):
        file = files[i % len(files)]
        good = (whole / file).read_bytes()
        data = bytearray(good)
        at = int(rng.integers(len(data)))
        kind = rng.integers(4)
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = rng.bytes(3)
        else:
            data[at : at + 40] = bytes(len(data[at : at + 40]))
        if data == good:
            continue
        (folder / file).write_bytes(data)
        is_json_space = file.name == "manifest.json" and same_json(data, good)
        assert verify(folder).ok == is_json_space, (file, kind, at)
        try:
            dataset = open_native(folder)
        except TrajloadError:
            pass
        else:
            num_opened += 1
            try:
                for got, expected in zip(everything(dataset), truth, strict=True):
                    assert got == expected or "refused" in repr(got), (file, kind, at)
            except TrajloadError:
                pass
            dataset.close()
        (folder / file).write_bytes(good)
    assert num_opened > 50, "the test must also reach the reading part"


def same_json(data: bytes | bytearray, good: bytes) -> bool:
    try:
        return bool(json.loads(bytes(data)) == json.loads(good))
    except ValueError:
        return False


def test_random_values_in_an_index_that_is_vouched_for_do_no_harm(whole: Path, folder: Path) -> None:
    """Index columns changed and all checksums made to fit: verify finds each, and readers get a value or a TrajloadError."""
    rng = np.random.Generator(np.random.Philox(12))
    index = ShardIndex(whole / "shards" / "000000.idx")
    columns = {name: np.array(index.column(name)) for name in index.column_names}
    metadata = {k: v for k, v in index._file.metadata.items() if k != "checksums"}
    names = [name for name, column in columns.items() if len(column)]
    num_found = num_tried = 0
    for i in range(300):
        name = names[i % len(names)]
        changed = {**columns, name: columns[name].copy()}
        row = int(rng.integers(len(changed[name])))
        info = np.iinfo(changed[name].dtype)
        value = [0, 1, info.max, info.min, int(changed[name][row]) // 2, int(rng.integers(100))][rng.integers(6)]
        if int(changed[name][row]) == value:
            continue
        changed[name][row] = value
        seal_index(folder, b"".join(columns_to_parts(changed, metadata)))
        num_tried += 1
        num_found += not verify(folder).ok
        try:
            dataset = open_native(folder)
            for _ in everything(dataset):
                pass
            dataset.close()
        except TrajloadError:
            pass
    assert num_tried > 250
    assert num_found == num_tried
