"""What the Writer is given comes back through tracks, for every encoding."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from trajload.refs import ArrayTrack, ByteRange, ChunkTrack, ImageTrack, TextTrack, VideoTrack
from trajload.shards.writer import Writer
from trajload.sources.native import NativeDataset, open_native
from trajload.spec import StreamSpec, UniformClock
from trajload.types import Modality


def read_array(dataset: NativeDataset, track: Any) -> np.ndarray:
    """Return all rows of an array or chunk track, by plain reads, checking every checksum."""
    if isinstance(track, ArrayTrack):
        data = dataset.store.read(ByteRange(track.file, track.offset, track.num_rows * track.row_bytes))
        assert xxhash.xxh3_64_intdigest(data) == track.checksum
    else:
        assert isinstance(track, ChunkTrack)
        chunks = []
        for k in range(len(track.offset_K)):
            chunk = dataset.store.read(ByteRange(track.file, int(track.offset_K[k]), int(track.size_K[k])))
            assert xxhash.xxh3_64_intdigest(chunk) == int(track.checksum_K[k])
            chunks.append(zstandard.ZstdDecompressor().decompress(chunk))
        data = b"".join(chunks)
    return np.frombuffer(data, track.dtype).reshape(track.num_rows, *track.row_shape)


@pytest.fixture(scope="module")
def dataset(every_encoding: Any) -> NativeDataset:
    return open_native(every_encoding.path)


@pytest.mark.parametrize("episode", [0, 1])
@pytest.mark.parametrize("stream", ["state", "reward", "heights", "imu"])
def test_numeric_streams_come_back_bit_equal(
    every_encoding: Any, dataset: NativeDataset, stream: str, episode: int
) -> None:
    """npy and npy.zst keep every bit, shape and dtype."""
    value = every_encoding.episodes[episode][stream]
    got = read_array(dataset, dataset.track(episode, stream))
    assert got.dtype == value.dtype and got.shape == value.shape
    assert got.tobytes() == value.tobytes()


def test_raw_rows_stand_on_a_tar_block(dataset: NativeDataset) -> None:
    """Row 0 of every npy member lies on a multiple of 512 bytes of the shard."""
    for episode in range(dataset.num_episodes):
        track = dataset.track(episode, "state")
        assert isinstance(track, ArrayTrack) and track.offset % 512 == 0


def test_chunks_hold_the_rows_they_say(dataset: NativeDataset) -> None:
    """Every chunk but the last has `rows_per_chunk` rows; there is more than one, so the case is real."""
    track = dataset.track(0, "heights")
    assert isinstance(track, ChunkTrack)
    assert track.rows_per_chunk == (256 * 1024) // (40 * 50 * 2) or len(track.offset_K) == 1
    assert len(track.offset_K) == -(-track.num_rows // track.rows_per_chunk)


def test_encoded_pictures_are_kept_as_they_are(every_encoding: Any, dataset: NativeDataset) -> None:
    """Bytes given as JPEG stand in the shard unchanged, one member for each row."""
    track = dataset.track(1, "cam.wrist")
    assert isinstance(track, ImageTrack) and track.shape == (24, 32, 3) and track.encoding == "jpg"
    for row, data in enumerate(every_encoding.episodes[1]["cam.wrist"]):
        got = dataset.store.read(ByteRange(track.file, int(track.offset_N[row]), int(track.size_N[row])))
        assert got == data
        assert xxhash.xxh3_64_intdigest(got) == int(track.checksum_N[row])


def test_depth_frames_survive_as_16_bit_png(every_encoding: Any, dataset: NativeDataset) -> None:
    """uint16 frames encoded as PNG decode to the same values."""
    track = dataset.track(0, "depth")
    assert isinstance(track, ImageTrack)
    for row in range(track.num_rows):
        data = dataset.store.read(ByteRange(track.file, int(track.offset_N[row]), int(track.size_N[row])))
        got = np.asarray(Image.open(io.BytesIO(data)))
        np.testing.assert_array_equal(got, every_encoding.episodes[0]["depth"][row])


@pytest.mark.parametrize(("stream", "container"), [("cam.front", "mp4"), ("cam.back", "mkv")])
def test_video_files_are_kept_and_their_packets_found(
    every_encoding: Any, dataset: NativeDataset, stream: str, container: str
) -> None:
    """A video given as bytes stands in the shard as it is; each packet is read at its offset with its GOP's checksum."""
    data = every_encoding.episodes[0][stream]
    track = dataset.track(0, stream)
    assert isinstance(track, VideoTrack) and track.num_rows == 11 and track.index.num_frames == 11
    with av.open(io.BytesIO(data)) as source:
        expected = [bytes(packet) for packet in source.demux(video=0) if packet.size]
    got = [
        dataset.store.read(ByteRange(track.file, int(offset), int(size)))
        for offset, size in zip(track.index.offset_P, track.index.size_P, strict=True)
    ]
    assert got == expected
    bounds = [*track.index.gop_start_G.tolist(), len(got)]
    assert len(bounds) == 4, "11 frames with a keyframe every 4 make 3 groups"
    for g in range(3):
        joined = b"".join(got[bounds[g] : bounds[g + 1]])
        assert xxhash.xxh3_64_intdigest(joined) == int(track.index.gop_checksum_G[g])
    assert data in Path(dataset.path, track.file).read_bytes(), container


@pytest.mark.parametrize("stream", ["task", "note", "scene"])
def test_text_comes_back(every_encoding: Any, dataset: NativeDataset, stream: str) -> None:
    """One str, a list with a str for each step, and a JSON object."""
    value = every_encoding.episodes[1][stream]
    track = dataset.track(1, stream)
    assert isinstance(track, TextTrack)
    data = dataset.store.read(ByteRange(track.file, track.offset, track.size))
    assert (data.decode() if track.encoding == "txt" else json.loads(data)) == value
    assert track.num_rows == (6 if stream == "note" else 1)
    assert xxhash.xxh3_64_intdigest(data) == track.checksum


def test_times_come_back_as_given(every_encoding: Any, dataset: NativeDataset) -> None:
    """Clocked timestamps and explicit step times are int64 and exact; the uniform clock is the fraction given."""
    np.testing.assert_array_equal(dataset.stream_times_ns(0, "imu"), every_encoding.episodes[0]["timestamps_ns"])
    steps = np.arange(4)
    np.testing.assert_array_equal(
        dataset.step_times_ns(2, steps[::-1]), every_encoding.episodes[2]["step_times_ns"][::-1]
    )
    clock = UniformClock(rate_hz=Fraction(30000, 1001), start_ns=5)
    np.testing.assert_array_equal(dataset.step_times_ns(1, steps), clock.times_ns(steps))
    assert dataset.step_rate_hz == pytest.approx(29.97, abs=1e-3)


def test_a_missing_stream_has_no_track(dataset: NativeDataset) -> None:
    """An episode that lacks a stream says so with None, not with an error."""
    assert dataset.track(2, "cam.front") is None
    assert dataset.track(2, "state") is not None
    assert len(dataset.stream_times_ns(2, "imu")) == 0


def test_episode_facts_come_back(dataset: NativeDataset) -> None:
    """Keys, lengths, terminal flags and metadata are those given."""
    infos = list(dataset.episodes())
    assert [info.key for info in infos] == ["ep-0", "ep-1", "000002"]
    assert dataset.num_steps_E.tolist() == [11, 6, 4] and dataset.num_steps == 21
    assert dataset.terminated_E.tolist() == [0, 1, -1]
    assert [info.terminated for info in infos] == [False, True, None]
    assert infos[1].metadata == {"operator": "person 1", "tries": 1} and infos[2].metadata == {}
    assert dataset.provenance() == {"source": "a test"}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_array_comes_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Arrays of every kind and shape round-trip bit for bit, raw and compressed, in any memory order."""
    dtype = data.draw(st.sampled_from(["bool", "uint8", "int16", "int64", "float16", "float32", "float64"]))
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=9))
    value = data.draw(hnp.arrays(np.dtype(dtype), shape))
    encoding = data.draw(st.sampled_from(["npy", "npy.zst"]))
    spec = StreamSpec(name="x", modality=Modality.ACTION, encoding=encoding, shape=shape[1:], dtype=dtype)
    path = tmp_path_factory.mktemp("any") / "d"
    with Writer(path, streams=[spec], step_rate_hz=10) as writer:
        writer.add_episode({"x": np.asfortranarray(value)})
    dataset = open_native(path)
    assert read_array(dataset, dataset.track(0, "x")).tobytes() == value.tobytes()


def test_same_input_gives_same_bytes(tmp_path: Path, every_encoding: Any) -> None:
    """Two runs of the Writer make byte-equal files, and so equal digests."""
    streams = open_native(every_encoding.path).manifest.streams
    values = {k: v for k, v in every_encoding.episodes[0].items() if k != "timestamps_ns"}
    for folder in ("a", "b"):
        with Writer(tmp_path / folder, streams=streams, step_rate_hz=30, name="same") as writer:
            writer.add_episode(values, timestamps_ns={"imu": every_encoding.episodes[0]["timestamps_ns"]})
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert len(files) == 5
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
