"""What the Writer refuses, and that it then goes on as if nothing had been asked."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trajload.errors import ConfigError, DecodeError, ManifestError, ShardError, SourceError
from trajload.shards.video_encode import VideoEncode
from trajload.shards.writer import Writer
from trajload.sources.native import open_native
from trajload.spec import StreamSpec
from trajload.types import Modality

STATE = StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(3,), dtype="float32")
COUNT = StreamSpec(name="count", modality=Modality.METADATA, encoding="npy", shape=(), dtype="uint8")
IMU = StreamSpec(
    name="imu", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(), dtype="float64", clock="clocked"
)
CAM = StreamSpec(name="cam", modality=Modality.RGB, encoding="mp4", shape=(48, 64, 3), dtype="uint8")
SNAP = StreamSpec(name="snap", modality=Modality.RGB, encoding="jpg", shape=(8, 16, 3), dtype="uint8")
TASK = StreamSpec(name="task", modality=Modality.LANGUAGE, encoding="txt", shape=(), dtype="str")
NOTE = StreamSpec(name="note", modality=Modality.LANGUAGE, encoding="json", shape=(), dtype="str")
SPECS = [STATE, COUNT, IMU, CAM, SNAP, TASK, NOTE]
ROWS = np.zeros((5, 3), np.float32)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "d", streams=SPECS, step_rate_hz=30)
    yield writer
    writer.abort()


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"in": value}
    return value


def png(height: int, width: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        ({"state": np.zeros((5, 4), np.float32)}, {}, r"'state' has the wrong shape: got \(5, 4\), expected \(N, 3\)"),
        ({"state": np.float32(1)}, {}, r"'state' has the wrong shape: got \(\), expected \(N, 3\)"),
        ({"count": np.zeros((5, 1), np.uint8)}, {}, r"'count' has the wrong shape: got \(5, 1\), expected \(N,\)"),
        ({"state": np.zeros((5, 3))}, {}, r"'state' has the wrong dtype: got float64, expected float32"),
        ({"state": np.array([["a"] * 3])}, {}, r"'state' has the wrong dtype: got <U1"),
        ({"state": [[1, 2, 3], [4, 5]]}, {}, r"'state' is not a regular array"),
        (
            {"state": np.ma.masked_equal(np.tile(np.float32([0, 1, 2]), (5, 1)), 1)},
            {},
            r"'state' has 5 masked values, which cannot be stored",
        ),
        ({"count": [1, 256]}, {}, r"'count' holds values \[1, 256\], which uint8 cannot keep"),
        ({"count": [0.5]}, {}, r"'count' holds float64 values, which uint8 cannot keep"),
        ({"count": ["x"]}, {}, r"'count' holds <U1 values: expected numbers"),
        ({"state": np.zeros((0, 3), np.float32)}, {}, r"'state' has 0 rows: expected at least 1"),
        ({"state": ROWS, "count": np.zeros(6, np.uint8)}, {}, r"'count' has 6 rows: expected 5, the steps"),
        ({"state": ROWS}, {"num_steps": 6}, r"'state' has 5 rows: expected 6, the steps"),
        ({}, {"num_steps": 0}, r"num_steps=0 is invalid: an episode has at least 1 step"),
        ({}, {"num_steps": 2.0}, r"num_steps=2.0 is invalid"),
        ({}, {}, r"num_steps is not given, and the episode has no stepwise stream"),
        ({"task": "x"}, {}, r"num_steps is not given, and the episode has no stepwise stream"),
        (
            {"stat": ROWS},
            {},
            r"the episode names stream 'stat', which the Writer does not have: expected one of 'state'",
        ),
        ({"imu": np.zeros(4)}, {"num_steps": 2}, r"clocked stream 'imu' has no timestamps"),
        (
            {"imu": np.zeros(4)},
            {"num_steps": 2, "timestamps_ns": {"imu": [0, 1, 2]}},
            r"\['imu'\] have shape \(3,\): expected \(4,\)",
        ),
        (
            {"imu": np.zeros(3)},
            {"num_steps": 2, "timestamps_ns": {"imu": [0, 7, 7]}},
            r"\['imu'\] do not rise strictly: got 7 ns at row 1, then 7 ns",
        ),
        (
            {"imu": np.zeros(2)},
            {"num_steps": 2, "timestamps_ns": {"imu": [0.0, 0.1]}},
            r"\['imu'\] have dtype float64: expected int64 nanoseconds",
        ),
        (
            {"imu": np.zeros(2)},
            {"num_steps": 2, "timestamps_ns": {"imu": np.array([-(2**63), 2**63 - 1])}, "terminated": 1},
            r"terminated=1 is invalid",
        ),
        ({"state": ROWS}, {"timestamps_ns": {"state": np.arange(5)}}, r"timestamps_ns names stepwise stream 'state'"),
        ({"state": ROWS}, {"timestamps_ns": {"imu": np.arange(5)}}, r"'imu', but the episode has no values for it"),
        ({"state": ROWS}, {"step_times_ns": [0, 1, 2, 3]}, r"'state' has 5 rows: expected 4"),
        ({"state": ROWS}, {"step_times_ns": [0, 1, 2, 3, 3]}, r"step_times_ns do not rise strictly: got 3 ns at row 3"),
        ({"state": ROWS}, {"step_times_ns": np.arange(5), "start_ns": 4}, r"start_ns and step_times_ns are both given"),
        ({"state": ROWS}, {"start_ns": 0.5}, r"start_ns=0.5 is invalid"),
        ({"state": ROWS}, {"key": "a.b"}, r"key='a.b' cannot name an episode"),
        ({"state": ROWS}, {"metadata": {"x": {1, 2}}}, r"metadata of the episode are not JSON: set"),
        ({"state": ROWS}, {"metadata": nested(3000)}, r"metadata of the episode are not JSON: maximum recursion depth"),
        ({"state": ROWS, "task": ["a", "b"]}, {}, r"'task' has encoding 'txt', which holds one str.*a list of 2"),
        ({"state": ROWS, "task": 7}, {}, r"'task' holds a int: expected str"),
        ({"state": ROWS, "note": ["a", "b"]}, {}, r"'note' has 2 rows: expected 5"),
        ({"state": ROWS, "note": []}, {}, r"'note' has 0 rows"),
        ({"state": ROWS, "task": "\ud800"}, {}, r"'task' holds text that is not Unicode"),
        ({"snap": [png(8, 16)]}, {}, r"'snap' row 0 is a PNG picture: expected JPEG"),
        ({"snap": [b"junk"]}, {}, r"'snap' row 0 is not a JPEG picture"),
        ({"snap": b"junk"}, {}, r"'snap' has encoding 'jpg': got bytes, expected frames"),
        ({"cam": np.zeros((5, 48, 60, 3), np.uint8)}, {}, r"'cam' has the wrong shape: got \(5, 48, 60, 3\)"),
        ({"cam": Path("/nowhere/x.mp4")}, {}, r"'cam': file '/nowhere/x.mp4' cannot be read"),
    ],
)
def test_an_episode_that_does_not_fit_is_refused(
    writer: Writer, values: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    """The message says what was got and expected; the Writer goes on and the dataset has only the good episode."""
    with pytest.raises(ConfigError, match=message):
        writer.add_episode(values, **arguments)
    writer.add_episode({"state": ROWS}, key="good")
    writer.close()
    dataset = open_native(writer.path)
    assert [info.key for info in dataset.episodes()] == ["good"]
    assert dataset.stats()["state"]["count"] == 5, "a refused episode leaves no trace in the statistics"


def test_a_picture_of_another_size_is_refused(writer: Writer) -> None:
    """Height and width are compared with the stream's, as shown."""
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "JPEG")
    with pytest.raises(ConfigError, match=r"'snap' row 0 has the wrong size: got 8x8, expected 8x16"):
        writer.add_episode({"snap": [out.getvalue()]})


def test_a_turned_picture_counts_as_shown(writer: Writer) -> None:
    """EXIF orientation 6 turns 16x8 into 8x16 for the eye, and so for the check."""
    picture = Image.new("RGB", (8, 16))
    exif = picture.getexif()
    exif[0x0112] = 6
    out = io.BytesIO()
    picture.save(out, "JPEG", exif=exif)
    assert writer.add_episode({"snap": [out.getvalue()]}) == 0


@pytest.mark.parametrize("data", [b"", b"this is text, not video" * 50, b"\0\0\0\x18ftypisom" + bytes(100)])
def test_bytes_that_are_no_video_are_refused(writer: Writer, data: bytes) -> None:
    """Text renamed mp4 neither crashes nor is stored."""
    with pytest.raises((SourceError, DecodeError)):
        writer.add_episode({"cam": data})
    assert writer.num_episodes == 0


def test_duplicate_keys_are_refused(writer: Writer) -> None:
    """A key names one episode of the dataset."""
    writer.add_episode({"state": ROWS}, key="a")
    with pytest.raises(ConfigError, match="key='a' is already taken"):
        writer.add_episode({"state": ROWS}, key="a")


def test_nan_may_be_stored(writer: Writer) -> None:
    """Not a fault of the format: doctor warns, statistics leave it out and count it."""
    rows = ROWS.copy()
    rows[1, 2] = np.nan
    writer.add_episode({"state": rows})
    writer.close()
    stats = open_native(writer.path).stats()["state"]
    assert stats["num_not_finite"] == [0, 0, 1] and stats["mean"] == [0.0, 0.0, 0.0]


def test_lists_of_python_numbers_are_taken(writer: Writer) -> None:
    """Python floats have no width; they become the stream's dtype."""
    writer.add_episode({"state": [[0.5, 1, 2], [3, 4, 5]], "count": [1, 255]})
    writer.close()
    assert open_native(writer.path).stats()["state"]["max"] == [3.0, 4.0, 5.0]


def test_the_caller_may_reuse_its_arrays(writer: Writer) -> None:
    """What is changed after add_episode returns changes neither bytes nor statistics."""
    rows = np.ones((4, 3), np.float32)
    writer.add_episode({"state": rows})
    rows[:] = 9
    writer.close()
    assert open_native(writer.path).stats()["state"]["max"] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"streams": None}, "streams is missing"),
        ({"step_rate_hz": 0}, "step_rate_hz=0 is invalid"),
        ({"step_rate_hz": float("nan")}, "step_rate_hz=nan is invalid"),
        ({"step_rate_hz": "fast"}, "step_rate_hz='fast' is invalid"),
        ({"shard_bytes": 10}, "shard_bytes=10 is invalid: expected an int of at least 4096"),
        ({"provenance": {"x": object()}}, "provenance is not JSON"),
        ({"video": {"state": VideoEncode()}}, r"video names 'state': expected one of the video streams \['cam'\]"),
        ({"append": True, "streams": None}, None),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str | None) -> None:
    """Each names the argument; appending to nothing names the missing manifest."""
    error = ManifestError if message is None else ConfigError
    with pytest.raises(error, match=message or "manifest.json' cannot be read"):
        Writer(tmp_path / "d", **{"streams": SPECS, "step_rate_hz": 30, **arguments})


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The folder cannot be made."""
    (tmp_path / "d").write_text("x")
    with pytest.raises(ConfigError, match="cannot be made a folder"):
        Writer(tmp_path / "d", streams=SPECS)


def test_arguments_that_are_no_dict_are_refused(writer: Writer) -> None:
    """The usual slip: an array instead of a dict with it."""
    with pytest.raises(ConfigError, match="values is a ndarray: expected a dict"):
        writer.add_episode(ROWS)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timestamps_ns is a list: expected a dict"):
        writer.add_episode({"state": ROWS}, timestamps_ns=[1])  # type: ignore[arg-type]


def test_a_dataset_without_episodes_is_not_written(tmp_path: Path) -> None:
    """An empty dataset would fail later and elsewhere."""
    with pytest.raises(ConfigError, match="has no episode: expected at least 1"), Writer(tmp_path / "d", streams=SPECS):
        pass
    assert not (tmp_path / "d" / "manifest.json").exists()


def test_episodes_without_a_step_rate_need_times(tmp_path: Path) -> None:
    """No clock is made up."""
    with Writer(tmp_path / "d", streams=[STATE]) as writer:
        with pytest.raises(ConfigError, match="step_times_ns is missing: the Writer has no step_rate_hz"):
            writer.add_episode({"state": ROWS})
        writer.add_episode({"state": ROWS}, step_times_ns=np.arange(5) * 7)
    dataset = open_native(tmp_path / "d")
    assert dataset.step_rate_hz is None
    assert dataset.step_times_ns(0, np.array([4, 0])).tolist() == [28, 0]


def test_a_float_rate_is_the_fraction_meant(tmp_path: Path) -> None:
    """29.97 is 2997/100, not its nearest binary fraction."""
    with Writer(tmp_path / "d", streams=[STATE], step_rate_hz=29.97) as writer:
        writer.add_episode({"state": ROWS})
    assert open_native(tmp_path / "d").manifest.step_rate_hz == Fraction(2997, 100)


def test_an_existing_dataset_is_not_overwritten(tmp_path: Path) -> None:
    """Without append=True the Writer refuses, and the dataset stays."""
    with Writer(tmp_path / "d", streams=[STATE], step_rate_hz=30) as writer:
        writer.add_episode({"state": ROWS})
    digest = open_native(tmp_path / "d").digest
    with pytest.raises(ConfigError, match=r"already holds a dataset\. Pass append=True"):
        Writer(tmp_path / "d", streams=[STATE], step_rate_hz=30)
    assert open_native(tmp_path / "d").digest == digest


def test_two_writers_cannot_share_a_folder(writer: Writer) -> None:
    """The second is told to wait; after the first has closed it may go on."""
    with pytest.raises(ConfigError, match="is being written by another Writer"):
        Writer(writer.path, streams=SPECS)
    writer.abort()
    Writer(writer.path, streams=SPECS).abort()


def test_an_exception_inside_with_publishes_nothing(tmp_path: Path) -> None:
    """No manifest, no temporary file, and the exception comes through."""
    with pytest.raises(KeyError, match="mine"), Writer(tmp_path / "d", streams=[STATE], step_rate_hz=30) as writer:
        writer.add_episode({"state": ROWS})
        raise KeyError("mine")
    assert [p.name for p in (tmp_path / "d").rglob("*")] == ["shards"]
    with pytest.raises(ConfigError, match="this Writer is aborted"):
        writer.add_episode({"state": ROWS})


def test_shards_are_cut_at_their_size(tmp_path: Path) -> None:
    """A shard ends before the episode that would make it larger; episodes are found across shards."""
    with Writer(tmp_path / "d", streams=[STATE], step_rate_hz=30, shard_bytes=10_000) as writer:
        for i in range(20):
            writer.add_episode({"state": np.full((10, 3), i, np.float32)}, metadata={"i": i})
    dataset = open_native(tmp_path / "d")
    assert len(dataset.manifest.shards) == 7, "3 episodes of 3072 bytes to a shard"
    assert all(entry.num_bytes <= 10_000 + 1024 for entry in dataset.manifest.shards)
    assert [info.metadata["i"] for info in dataset.episodes()] == list(range(20))
    assert dataset.episode(19).file == "shards/000006.tar"
    dataset.close()


def test_appending_adds_shards_and_changes_the_digest(tmp_path: Path) -> None:
    """Old shards keep their bytes; episodes, keys and statistics go on."""
    rng = np.random.Generator(np.random.Philox(5))
    rows = rng.standard_normal((60, 3), dtype=np.float32)
    with Writer(tmp_path / "d", streams=[STATE], step_rate_hz=30, provenance={"source": "a"}) as writer:
        writer.add_episode({"state": rows[:20]})
    first = open_native(tmp_path / "d")
    old = (tmp_path / "d" / "shards" / "000000.tar").read_bytes()
    with Writer(tmp_path / "d", append=True, provenance={"source": "b"}) as writer:
        assert writer.num_episodes == 1
        with pytest.raises(ConfigError, match="key='000000' is already taken"):
            writer.add_episode({"state": rows[20:]}, key="000000")
        assert writer.add_episode({"state": rows[20:]}) == 1
    second = open_native(tmp_path / "d")
    assert second.digest != first.digest and second.num_episodes == 2
    assert (tmp_path / "d" / "shards" / "000000.tar").read_bytes() == old
    assert second.provenance() == {"source": "a", "appended": [{"source": "b"}]}
    stats = second.stats()["state"]
    np.testing.assert_allclose(stats["mean"], rows.mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(stats["std"], rows.std(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(stats["q01"], np.quantile(rows.astype(np.float64), 0.01, axis=0), rtol=1e-12)
    assert stats["count"] == 60
    assert first.stats()["state"]["count"] == 20, "a reader of the old version goes on reading it"


def test_appending_nothing_changes_nothing(tmp_path: Path) -> None:
    """No new manifest where no episode came."""
    with Writer(tmp_path / "d", streams=[STATE], step_rate_hz=30) as writer:
        writer.add_episode({"state": ROWS})
    before = (tmp_path / "d" / "manifest.json").read_bytes()
    with Writer(tmp_path / "d", append=True):
        pass
    assert (tmp_path / "d" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"streams": [STATE, COUNT]}, "streams differ .* in 'count'"),
        ({"name": "other"}, "name='other' differs from that of the dataset to append to, 'd'"),
        ({"step_rate_hz": 15}, "step_rate_hz=15 differs from that of the dataset to append to, 30"),
    ],
)
def test_appending_something_else_is_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    """A dataset has one set of streams, one name, one rate."""
    with Writer(tmp_path / "d", streams=[STATE], step_rate_hz=30) as writer:
        writer.add_episode({"state": ROWS})
    with pytest.raises(ConfigError, match=message):
        Writer(tmp_path / "d", append=True, **arguments)


def test_a_full_disk_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so at the episode and at close; the folder is as it was."""
    writer = Writer(tmp_path / "d", streams=[STATE], step_rate_hz=30)
    writer.add_episode({"state": ROWS})

    def full(data: Any) -> int:
        raise OSError(28, "No space left on device")

    assert writer._open is not None
    monkeypatch.setattr(writer._open, "_write", full)
    with pytest.raises(ShardError, match=r"cannot be written: No space left on device.*\[dataset=.* episode=000001\]"):
        writer.add_episode({"state": ROWS})
    with pytest.raises(ConfigError, match="this Writer is failed"):
        writer.add_episode({"state": ROWS})
    with pytest.raises(ShardError, match="was not written"):
        writer.close()
    assert [p.name for p in (tmp_path / "d").rglob("*")] == ["shards"]


def test_frames_become_video_and_pictures(tmp_path: Path) -> None:
    """Arrays are encoded: colour as H.264 in mp4, depth bit for bit as FFV1 in Matroska, jpg with one member a row."""
    depth = StreamSpec(name="depth", modality=Modality.DEPTH, encoding="mkv", shape=(48, 64, 1), dtype="uint16")
    frames = np.random.Generator(np.random.Philox(1)).integers(0, 2**16, (5, 48, 64), dtype=np.uint16)
    colour = np.zeros((5, 48, 64, 3), np.uint8)
    colour[:, :, :, 0] = np.arange(5, dtype=np.uint8)[:, None, None] * 50
    with Writer(
        tmp_path / "d", streams=[CAM, depth, SNAP], step_rate_hz=30, video={"cam": VideoEncode(gop=2)}
    ) as writer:
        writer.add_episode({"cam": colour, "depth": frames, "snap": colour[:, :8, :16]})
    dataset = open_native(tmp_path / "d")
    cam, deep, snap = (dataset.track(0, name) for name in ("cam", "depth", "snap"))
    assert cam.index.codec == "h264" and len(cam.index.gop_start_G) == 3  # type: ignore[union-attr]
    assert deep.index.codec == "ffv1" and deep.num_rows == 5 and snap.num_rows == 5  # type: ignore[union-attr]
    dataset.close()
