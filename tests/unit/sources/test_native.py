"""The native dataset as the rest of the library sees it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from in_threads import in_threads

from trajload.errors import ConfigError, WindowError
from trajload.refs import ArrayTrack, ByteRange
from trajload.shards.writer import Writer
from trajload.sources import native
from trajload.sources.native import NativeDataset, is_native, open_native
from trajload.spec import StreamSpec
from trajload.types import Modality

SPECS = [
    StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(2,), dtype="float32"),
    StreamSpec(name="imu", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(), dtype="int32", clock="clocked"),
]
NUM_EPISODES = 90


def write(path: Path) -> None:
    with Writer(path, streams=SPECS, step_rate_hz=10, shard_bytes=4096) as writer:
        for i in range(NUM_EPISODES):
            values = {"state": np.full((3 + i % 4, 2), i, np.float32), "imu": np.arange(2, dtype=np.int32)}
            writer.add_episode(values, timestamps_ns={"imu": [i, i + 1]}, terminated=bool(i % 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / "d"
    write(path)
    return path


@pytest.fixture
def dataset(folder: Path) -> Iterator[NativeDataset]:
    dataset = open_native(folder)
    yield dataset
    dataset.close()


def first_value(dataset: NativeDataset, episode: int) -> float:
    track = dataset.track(episode, "state")
    assert isinstance(track, ArrayTrack)
    data = dataset.store.read(ByteRange(track.file, track.offset, track.row_bytes))
    return float(np.frombuffer(data, track.dtype)[0])


def test_every_episode_is_found_across_many_shards(dataset: NativeDataset) -> None:
    """More shards than mapped indexes; each episode gives its own values, in any order."""
    assert len(dataset.manifest.shards) > native._MAX_MAPPED_INDEXES
    order = np.random.Generator(np.random.Philox(1)).permutation(NUM_EPISODES)
    assert [first_value(dataset, int(i)) for i in order] == [float(i) for i in order]
    assert dataset.num_steps_E.tolist() == [3 + i % 4 for i in range(NUM_EPISODES)]
    assert dataset.terminated_E.tolist() == [i % 2 for i in range(NUM_EPISODES)]


def test_mapped_indexes_are_bounded_and_closed(folder: Path) -> None:
    """However many shards are touched, descriptors stay few; close lets go of all; use after it works."""
    before = len(os.listdir("/proc/self/fd"))
    dataset = open_native(folder)
    for i in range(NUM_EPISODES):
        dataset.track(i, "state")
    # 64 mapped indexes, and the shards' own descriptors that the store keeps
    assert len(os.listdir("/proc/self/fd")) - before <= 64 + 128
    dataset.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert first_value(dataset, 5) == 5.0
    dataset.close()


def test_a_track_outlives_the_index_it_came_from(folder: Path) -> None:
    """Timestamps are views of the mapping; they stay right when the index is dropped."""
    dataset = open_native(folder)
    times = dataset.stream_times_ns(3, "imu")
    dataset.close()
    assert times.tolist() == [3, 4] and not times.flags.writeable


def test_negative_and_impossible_episodes(dataset: NativeDataset) -> None:
    """-1 is the last; beyond the ends is a WindowError with the count."""
    assert dataset.episode_key(-1) == dataset.episode_key(NUM_EPISODES - 1)
    with pytest.raises(WindowError, match=f"episode {NUM_EPISODES} does not exist.*has {NUM_EPISODES} episodes"):
        dataset.track(NUM_EPISODES, "state")


def test_unknown_and_stepwise_streams_are_told(dataset: NativeDataset) -> None:
    """The message lists the streams there are, and which call is meant."""
    with pytest.raises(ConfigError, match=r"stream 'stat' is unknown: .* has 'state', 'imu'"):
        dataset.track(0, "stat")
    with pytest.raises(ConfigError, match="stream 'state' is stepwise"):
        dataset.stream_times_ns(0, "state")


def test_columns_cannot_be_changed(dataset: NativeDataset) -> None:
    """What all readers share is read-only."""
    with pytest.raises(ValueError, match="read-only"):
        dataset.num_steps_E[0] = 1


def test_a_dataset_survives_pickling(dataset: NativeDataset) -> None:
    """A worker process gets the same dataset."""
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.digest == dataset.digest and first_value(copy, 7) == 7.0
    copy.close()


def test_many_threads_read_the_same_dataset(dataset: NativeDataset) -> None:
    """Tracks built at once by eight threads are all right."""
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in np.random.Generator(np.random.Philox(seed)).integers(0, NUM_EPISODES, 200):
            if first_value(dataset, int(i)) != float(i):
                wrong.append(int(i))

    in_threads(work, range(8))
    assert not wrong


def test_is_native_tells_layouts_apart(folder: Path, tmp_path: Path) -> None:
    """Our manifest or a pointer to it; not a folder, not another tool's manifest.json."""
    assert is_native(folder)
    assert not is_native(tmp_path) and not is_native(tmp_path / "nowhere")
    (tmp_path / "manifest.json").write_text('{"format": "something else"}')
    assert not is_native(tmp_path)
    (tmp_path / "manifest.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert is_native(tmp_path)


def test_opening_makes_no_object_per_episode(tmp_path: Path) -> None:
    """2,000 episodes more cost less than 200 KB more when opened: arrays only."""
    import tracemalloc

    sizes = []
    for count in (50, 2050):
        with Writer(tmp_path / f"{count}", streams=SPECS[:1], step_rate_hz=10) as writer:
            for _ in range(count):
                writer.add_episode({"state": np.zeros((3, 2), np.float32)})
        open_native(tmp_path / f"{count}").close()
        tracemalloc.start()
        dataset = open_native(tmp_path / f"{count}")
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        dataset.close()
    assert sizes[1] - sizes[0] < 200_000, sizes


@pytest.mark.multiproc
def test_opening_loads_neither_torch_nor_av(folder: Path) -> None:
    """A state-only dataset needs no decoder."""
    code = (
        "import sys; from trajload.sources.native import open_native; d = open_native(sys.argv[1]); d.track(0, 'state');"
        "print([m for m in ('torch', 'av', 'PIL') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
