"""Episodes taken out of a shard as records: the bytes, and everything the index says of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import trajload as tl
from trajload.errors import ShardCorruptError
from trajload.shards.index_builder import IndexBuilder
from trajload.shards.scan import scan_episodes
from trajload.shards.shard_writer import ShardWriter
from trajload.shards.stored import episode_bytes, stored_record
from trajload.sources.native import NativeDataset, open_native
from trajload.spec import StreamSpec
from trajload.types import Modality


def everything(folder: Path) -> Path:
    """Write two episodes with every encoding, explicit step times and a clocked stream among them."""
    image = {"modality": Modality.RGB, "shape": (8, 8, 3), "dtype": "uint8"}
    specs = [
        StreamSpec(name="cam", encoding="mp4", **{**image, "shape": (16, 16, 3)}),
        StreamSpec(
            name="depth", modality=Modality.DEPTH, encoding="mkv", shape=(16, 16, 1), dtype="uint16", clock="clocked"
        ),
        StreamSpec(name="jpegs", encoding="jpg", **image),
        StreamSpec(name="pngs", encoding="png", **image),
        StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(3,), dtype="float64"),
        StreamSpec(name="scan", modality=Modality.PROPRIOCEPTION, encoding="npy.zst", shape=(300,), dtype="float32"),
        StreamSpec(name="task", modality=Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"),
        StreamSpec(name="notes", modality=Modality.METADATA, encoding="json", shape=(), dtype="json"),
    ]
    with tl.Writer(folder, streams=specs) as writer:
        for e, length in enumerate((9, 30)):
            ramp = np.arange(length)
            writer.add_episode(
                {
                    "cam": np.full((length, 16, 16, 3), 40 + e, np.uint8),
                    "depth": np.full((5, 16, 16, 1), 900 + e, np.uint16),
                    "jpegs": np.full((length, 8, 8, 3), 90, np.uint8),
                    "pngs": np.full((length, 8, 8, 3), e, np.uint8) if e else None,
                    "state": np.outer(ramp, np.ones(3)),
                    "scan": np.outer(ramp, np.ones(300)).astype(np.float32),
                    "task": f"täsk {e}",
                    "notes": [{"i": int(i)} for i in ramp],
                },
                key=f"ep-{e}",
                step_times_ns=ramp * 33_333_333 + ramp**2,
                timestamps_ns={"depth": np.arange(5) * 40_000_000},
                terminated=[None, True][e],
                metadata={"grip": e} if e else None,
            )
    return folder


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[NativeDataset]:
    opened = open_native(everything(tmp_path / "data"))
    yield opened
    opened.close()


def test_records_are_those_of_the_tar(dataset: NativeDataset) -> None:
    """An index built from stored records, at the old places, has the bytes of the shard's own index."""
    entry, index, _ = dataset.located(0)
    builder = IndexBuilder()
    scanned = list(scan_episodes(Path(dataset.path, entry.name), dataset.manifest.streams))
    for e, (_, offsets) in enumerate(scanned):
        builder.add(stored_record(index, entry.name, dataset.manifest.streams, e, dataset.store.read), offsets)
    parts = builder.parts(shard=entry.name, shard_num_bytes=entry.num_bytes, streams=list(dataset.streams))
    assert b"".join(parts) == Path(dataset.path, entry.index.name).read_bytes()


def test_a_shard_written_from_records_is_the_same_file(dataset: NativeDataset, tmp_path: Path) -> None:
    """Members keep their bytes, and the same episodes in the same order give the same tar."""
    entry, index, _ = dataset.located(0)
    (tmp_path / "shards").mkdir()
    writer = ShardWriter(tmp_path, 0, list(dataset.streams))
    for e in range(2):
        writer.add(stored_record(index, entry.name, dataset.manifest.streams, e, dataset.store.read))
    assert writer.finish() == entry
    writer.abort()


def test_bytes_of_episodes_add_up_to_the_shard(dataset: NativeDataset) -> None:
    """All of the tar but its end."""
    entry, index, _ = dataset.located(0)
    assert int(episode_bytes(index).sum()) == entry.num_bytes - 1024
    np.testing.assert_array_equal(dataset.stored_bytes(), episode_bytes(index))


def test_a_damaged_member_is_not_passed_on(dataset: NativeDataset, tmp_path: Path) -> None:
    """One bit anywhere in the members' bytes is noticed, and the member named."""
    entry, index, _ = dataset.located(0)
    places = zip(index.column("member.offset").tolist(), index.column("member.size").tolist(), strict=True)
    for i, (offset, size) in enumerate(places):
        copy = tmp_path / f"copy-{i}"
        shutil.copytree(dataset.path, copy)
        data = bytearray((copy / entry.name).read_bytes())
        data[offset + size // 2] ^= 4
        (copy / entry.name).write_bytes(data)
        damaged = open_native(copy)
        _, own, _ = damaged.located(0)
        with pytest.raises(ShardCorruptError, match=r"member 'ep-\d\..*' is damaged"):
            for e in range(2):
                stored_record(own, entry.name, damaged.manifest.streams, e, damaged.store.read)
        damaged.close()
        shutil.rmtree(copy)
