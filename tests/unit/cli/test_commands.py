"""Each command on a real dataset: what it prints, what it writes, how it exits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damaging import flip
from PIL import Image

import trajload as tl
from trajload.cli.convert import parse_episodes
from trajload.cli.loading import parse_size
from trajload.errors import ConfigError

# Rich, which draws tables, takes ids of styles from the global generator of `random`.
pytestmark = pytest.mark.global_rng

Run = Callable[..., Any]


@pytest.fixture
def copy(demo_dataset: Path, tmp_path: Path) -> Path:
    """A copy of the demo dataset that a test may damage."""
    return Path(shutil.copytree(demo_dataset, tmp_path / "copy"))


# ---- inspect ----


def test_inspect_tells_what_is_there(trajload: Run, demo_dataset: Path) -> None:
    """People get counts, streams with codec and GOP, and the digest."""
    done = trajload("inspect", demo_dataset)
    assert done.code == 0
    for text in ("3 episodes", "30 Hz", "cam_front", "h264", "GOP 10", "64x64x3", "uint16 mm", "ffv1"):
        assert text in done.out
    assert tl.open(demo_dataset).digest in done.out


def test_inspect_json_agrees_with_the_dataset(trajload: Run, demo_dataset: Path) -> None:
    """Machines get the same as Python does."""
    dataset, got = tl.open(demo_dataset), trajload("inspect", demo_dataset, "--json").json
    assert (got["num_episodes"], got["num_steps"], got["digest"]) == (3, dataset.num_steps, dataset.digest)
    assert list(got["streams"]) == list(dataset.streams)
    assert got["streams"]["cam_front"]["video"]["codec"] == "h264"
    assert got["streams"]["action"]["stats"]["count"] > 0


# ---- verify ----


def test_verify_of_a_whole_dataset_exits_with_0(trajload: Run, demo_dataset: Path) -> None:
    """Nothing damaged, and it says how much was compared."""
    done = trajload("verify", demo_dataset)
    assert done.code == 0 and done.out.startswith("whole: 1 shard, 3 episodes")


def test_verify_of_a_damaged_dataset_exits_with_1_and_names_the_member(trajload: Run, copy: Path) -> None:
    """One flipped byte is found, in text and as JSON."""
    dataset = tl.open(copy)
    track = dataset.track(1, "action")
    dataset.close()
    flip(copy / track.file, track.offset + 5)
    done = trajload("verify", copy)
    assert done.code == 1 and "DAMAGED" in done.out
    assert "episode=episode-000001 stream=action" in done.out
    report = trajload("verify", copy, "--json")
    assert report.code == 1 and report.json["ok"] is False
    assert trajload("verify", copy, "--quick").code == 0  # which reads no shard


def test_verify_rebuilds_a_lost_index(trajload: Run, copy: Path) -> None:
    """An index can be made from its shard, bit by bit."""
    index = next((copy / "shards").glob("*.idx"))
    before = index.read_bytes()
    index.unlink()
    assert trajload("verify", copy).code == 1
    done = trajload("verify", copy, "--rebuild-index")
    assert done.code == 0 and "rebuilt" in done.out
    assert index.read_bytes() == before


# ---- doctor ----


def test_doctor_of_the_demo_dataset_finds_no_error(trajload: Run, demo_dataset: Path) -> None:
    """Generated data are healthy, under --deep too."""
    done = trajload("doctor", demo_dataset, "--deep", "--json")
    assert done.code == 0, done.out
    assert done.json["is_healthy"] and done.json["num_examined"] == 3


def test_doctor_exits_with_1_for_errors_and_under_strict_for_warnings(
    trajload: Run, copy: Path, tmp_path: Path
) -> None:
    """Damage is an error; an empty instruction is only a warning."""
    stream = tl.StreamSpec(name="task", modality=tl.Modality.LANGUAGE, encoding="txt", shape=(), dtype="str")
    action = tl.StreamSpec(name="a", modality=tl.Modality.ACTION, encoding="npy", shape=(1,), dtype="float32")
    with tl.Writer(tmp_path / "warned", streams=[stream, action], step_rate_hz=10) as writer:
        writer.add_episode({"task": " ", "a": [[0.1 * i] for i in range(20)]})
    assert trajload("doctor", tmp_path / "warned").code == 0
    assert trajload("doctor", tmp_path / "warned", "--strict").code == 1
    track = tl.open(copy).track(0, "cam_front")
    with open(copy / track.file, "r+b") as file:
        file.seek(int(track.index.offset_P[0]))
        file.write(b"\0" * 64)
    done = trajload("doctor", copy)
    assert done.code == 1 and "error:" in done.out and "stream=cam_front" in done.out


# ---- view ----


def test_view_writes_a_picture(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """The last episode by a negative number, a stretch of it, two streams."""
    out = tmp_path / "sub" / "e.png"
    done = trajload(
        "view",
        demo_dataset,
        "-e",
        -1,
        "--start",
        4,
        "--num-steps",
        6,
        "-s",
        "cam_front",
        "-s",
        "action",
        "-o",
        out,
        "--json",
    )
    assert done.code == 0
    assert done.json == {"png": str(out), "episode_index": 2, "episode_key": "episode-000002", "start": 4, "stop": 10}
    with Image.open(out) as image:
        assert image.width >= 6 * 96


def test_view_of_an_unknown_stream_lists_those_there(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """The mistake and the cure in one line."""
    done = trajload("view", demo_dataset, "-s", "cam_fornt", "-o", tmp_path / "x.png")
    assert done.code == 2 and "'cam_fornt' is unknown" in done.err and "'cam_front'" in done.err


# ---- convert and demo ----


def test_demo_generates_a_dataset(trajload: Run, tmp_path: Path) -> None:
    """`--only-data` writes a dataset that verifies."""
    done = trajload("demo", "--only-data", "--out", tmp_path / "d", "--episodes", 1, "--json")
    assert done.json == {"dataset": str(tmp_path / "d"), "num_episodes": 1, "seed": 0}
    assert trajload("verify", tmp_path / "d").code == 0


def test_convert_writes_a_native_dataset(trajload: Run, real_data: Path, tmp_path: Path) -> None:
    """A LeRobot folder becomes a dataset that verifies, videos kept as they were."""
    source = real_data / "lerobot_v2" / "gr00t_robot_sim_pickplace"
    done = trajload("convert", source, tmp_path / "out", "--episodes", "0:2", "--licence", "Apache-2.0", "--json")
    assert done.code == 0
    assert (done.json["num_episodes"], done.json["num_videos_copied"]) == (2, 2)
    assert trajload("verify", tmp_path / "out").code == 0
    assert trajload("inspect", tmp_path / "out", "--json").json["provenance"]["licence"] == "Apache-2.0"
    again = trajload("convert", source, tmp_path / "out")
    assert again.code == 2 and "already" in again.err


def test_convert_with_gop_encodes_anew(trajload: Run, real_data: Path, tmp_path: Path) -> None:
    """Keyframes then stand as close as asked."""
    source = real_data / "lerobot_v2" / "gr00t_robot_sim_pickplace"
    done = trajload("convert", source, tmp_path / "out", "--episodes", "1", "--gop", 12)
    assert done.code == 0 and "encoded anew: 1" in done.out
    streams = trajload("inspect", tmp_path / "out", "--json").json["streams"]
    assert streams["observation.images.ego_view"]["video"]["max_gop"] == 12


def test_convert_refuses_encoding_options_without_gop(trajload: Run, tmp_path: Path) -> None:
    """They would be ignored silently."""
    done = trajload("convert", tmp_path, tmp_path / "out", "--crf", 10)
    assert done.code == 2 and "pass --gop N" in done.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", [3]), ("0:3", [0, 1, 2]), ("7,1:3", [7, 1, 2]), (":2", [0, 1]), ("8:", [8, 9]), ("-2:", [8, 9])],
)
def test_episode_lists_are_understood(text: str, expected: list[int]) -> None:
    """Numbers, half-open ranges, and both."""
    assert parse_episodes(text, 10) == expected


@pytest.mark.parametrize(
    ("text", "message"), [("a", "invalid at 'a'"), ("1,,2", "invalid at ''"), ("5:5", "names none of 10")]
)
def test_bad_episode_lists_are_refused(text: str, message: str) -> None:
    """The offending part is named."""
    with pytest.raises(ConfigError, match=message):
        parse_episodes(text, 10)


@pytest.mark.parametrize(
    ("text", "expected"), [("96", (96, 96)), ("48x64", (48, 64)), ("48X64", (48, 64)), (None, None)]
)
def test_sizes_are_understood(text: str | None, expected: tuple[int, int] | None) -> None:
    """HEIGHTxWIDTH, or one number for a square."""
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "x", "0x5", "4x5x6", "big"])
def test_bad_sizes_are_refused(text: str) -> None:
    """With the form that is expected."""
    with pytest.raises(ConfigError, match="expected HEIGHTxWIDTH"):
        parse_size(text)
