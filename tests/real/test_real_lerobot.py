"""Real LeRobot data of every version, against the facts stated beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from trajload.errors import ConfigError, SourceError
from trajload.refs import TableTrack, VideoTrack
from trajload.sources.open import open as open_dataset
from trajload.types import Modality

pytestmark = pytest.mark.real_data

FOLDERS = {
    "gr00t": "lerobot_v2/gr00t_robot_sim_pickplace",
    "g1": "lerobot_v2/g1_unitree_inspire_av1",
    "starvla": "lerobot_v2/starvla_sim_pick_place",
    "made": "lerobot_v3/made_by_lerobot",
    "reachy2": "lerobot_v3/reachy2_apple_storage_novideo",
}


@pytest.fixture(scope="session")
def datasets(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = tmp_path_factory.mktemp("cache")
    return {name: open_dataset(real_data / path, cache_dir=cache, missing="skip") for name, path in FOLDERS.items()}


def values(dataset, episode: int, stream: str) -> Any:
    track = dataset.track(episode, stream)
    assert isinstance(track, TableTrack)
    return track.reader.read_rows(np.arange(track.num_rows))


@pytest.mark.parametrize(
    ("name", "kind", "lengths", "fps", "first_key"),
    [
        ("gr00t", "lerobot-v2.0", [416, 470, 470, 412, 328], 20.0, "episode_000000"),
        ("g1", "lerobot-v2.1", [221, 280], 30.0, "episode_000029"),
        ("starvla", "lerobot-v2.1", [398], 30.0, "episode_000002"),
        ("made", "lerobot-v3.0", [90, 61, 120, 75], 20.0, "episode_000000"),
        ("reachy2", "lerobot-v3.0", [299, 300, 300], 30.0, "episode_000000"),
    ],
)
def test_lengths_rates_and_keys_are_those_stated(datasets, name, kind, lengths, fps, first_key):
    """Version, lengths, rate and the original episode numbers."""
    dataset = datasets[name]
    assert (dataset.kind, dataset.num_steps_E.tolist(), dataset.step_rate_hz) == (kind, lengths, fps)
    assert dataset.episode_key(0) == first_key


@pytest.mark.parametrize(
    ("name", "stream", "dtype", "shape", "modality"),
    [
        ("gr00t", "observation.state", "float64", (44,), Modality.PROPRIOCEPTION),
        ("gr00t", "action", "float64", (44,), Modality.ACTION),
        ("gr00t", "next.reward", "float64", (), Modality.REWARD),
        ("gr00t", "next.done", "bool", (), Modality.METADATA),
        ("gr00t", "observation.images.ego_view", "uint8", (256, 256, 3), Modality.RGB),
        ("g1", "observation.state", "float32", (26,), Modality.PROPRIOCEPTION),
        ("g1", "observation.images.cam_high", "uint8", (480, 640, 3), Modality.RGB),
        ("starvla", "action.joints", "float64", (7,), Modality.ACTION),
        ("starvla", "action.gripper_close", "float64", (1,), Modality.ACTION),
        ("starvla", "state.eef_quaternion", "float64", (4,), Modality.PROPRIOCEPTION),
        ("starvla", "video.ego_view", "uint8", (480, 640, 3), Modality.RGB),
        ("made", "action", "float32", (44,), Modality.ACTION),
        ("made", "observation.images.ego_view", "uint8", (256, 256, 3), Modality.RGB),
        ("reachy2", "action", "float32", (19,), Modality.ACTION),
        ("reachy2", "task", "str", (), Modality.LANGUAGE),
    ],
)
def test_streams_are_as_the_files_store_them(datasets, name, stream, dtype, shape, modality):
    """dtype, row shape and modality of real features."""
    spec = datasets[name].streams[stream]
    assert (spec.dtype, spec.shape, spec.modality) == (dtype, shape, modality)


@pytest.mark.parametrize("name", FOLDERS)
def test_every_numeric_row_equals_what_pyarrow_reads(datasets, real_data, name):
    """All episodes, all signals, whole, against the parquet file read plainly and filtered by episode_index."""
    dataset = datasets[name]
    for episode in range(dataset.num_episodes):
        info = dataset.episode(episode)
        table = pq.read_table(real_data / FOLDERS[name] / info.file)
        mine = np.asarray(table.column("episode_index")) == info.metadata["episode_index"]
        assert mine.sum() == info.num_steps
        for stream, spec in dataset.streams.items():
            if spec.is_text or spec.is_video:
                continue
            want = np.array([row for row, keep in zip(table.column(stream).to_pylist(), mine, strict=True) if keep])
            got = values(dataset, episode, stream)
            assert got.dtype == np.dtype(spec.dtype) and got.shape == (info.num_steps, *spec.shape)
            np.testing.assert_array_equal(got, want.reshape(got.shape))


@pytest.mark.parametrize(
    ("name", "episode", "stream", "text"),
    [
        ("gr00t", 0, "task", "pick the squash from the counter and place it in the plate"),
        ("gr00t", 4, "task", "pick the spray from the counter and place it in the plate"),
        (
            "gr00t",
            4,
            "annotation.human.action.task_description",
            "pick the spray from the counter and place it in the plate",
        ),
        ("gr00t", 2, "annotation.human.validity", "valid"),
        ("g1", 1, "task", "Pick up the yellow bottle on the table."),
        ("starvla", 0, "task", "Move the potato to the top of the cooking utensils."),
        ("made", 0, "task", "move the can to the tray"),
        ("made", 1, "task", "pick the object and place it"),
        ("reachy2", 2, "task", "place the apple in the plate"),
    ],
)
def test_tasks_are_strings_of_every_step(datasets, name, episode, stream, text):
    """task_index (and GR00T's annotations) become their strings; pseudo tasks are kept."""
    dataset = datasets[name]
    assert values(dataset, episode, stream) == [text] * int(dataset.num_steps_E[episode])


def test_gr00t_pseudo_task_is_kept(datasets):
    """The table of tasks is given as it is, 'valid' included."""
    assert datasets["gr00t"].tasks[1] == "valid" and len(datasets["gr00t"].tasks) == 6


@pytest.mark.parametrize(
    ("name", "camera", "first_frames"),
    [
        ("gr00t", "observation.images.ego_view", [0] * 5),
        ("g1", "observation.images.cam_high", [0] * 2),
        ("starvla", "video.base_view", [0]),
        ("starvla", "video.ego_view", [0]),
        ("made", "observation.images.ego_view", [0, 90, 151, 271]),
    ],
)
def test_every_episode_has_a_frame_for_each_step(datasets, name, camera, first_frames):
    """Frames of each video are as many as the rows, and shared videos are told apart exactly."""
    dataset = datasets[name]
    for episode, first in enumerate(first_frames):
        track = dataset.track(episode, camera)
        assert isinstance(track, VideoTrack)
        assert (track.first_frame, track.num_rows) == (first, dataset.num_steps_E[episode])
        assert track.index.num_frames == (346 if name == "made" else dataset.num_steps_E[episode])


@pytest.mark.parametrize(
    ("name", "camera"), [("made", "observation.images.ego_view"), ("gr00t", "observation.images.ego_view")]
)
def test_frames_through_the_index_equal_a_sequential_decode(datasets, real_data, name, camera):
    """First, middle and last frame of each episode, decoded from its packets alone, bit for bit."""
    from trajload.decode.context import DecodeContext
    from trajload.decode.plan import plan_reads
    from trajload.decode.rows import decode_rows
    from trajload.spec import Image

    dataset = datasets[name]
    played: dict[str, list[av.VideoFrame]] = {}
    spec = dataset.streams[camera]
    for episode in range(dataset.num_episodes):
        track = dataset.track(episode, camera)
        if track.file not in played:
            played.clear()
            with av.open(str(real_data / FOLDERS[name] / track.file)) as container:
                played[track.file] = list(container.decode(video=0))
        rows = np.array([0, track.num_rows // 2, track.num_rows - 1])
        out = np.zeros((3, 3, *spec.shape[:2]), dtype=np.uint8)
        blobs = [dataset.store.read(r) for r in plan_reads(track, rows)]
        decode_rows(track, rows, blobs, out, spec=spec, request=Image(), store=dataset.store, context=DecodeContext())
        for i, row in enumerate(rows.tolist()):
            want = played[track.file][track.first_frame + row].to_ndarray(format="rgb24").transpose(2, 0, 1)
            # Colour conversion may differ by rounding; a neighbouring frame differs by far more.
            assert np.abs(out[i].astype(int) - want).max() <= 6


def test_missing_episodes_of_g1_are_refused_by_name_unless_skipped(real_data, datasets, tmp_path):
    """100 listed, 2 present: the default names the first absent file, the counts and the cure."""
    with pytest.raises(
        SourceError,
        match=r"'data/chunk-000/episode_000000\.parquet' does not exist; 98 of 100 episodes lack theirs\. .*missing='skip'",
    ):
        open_dataset(real_data / FOLDERS["g1"], cache_dir=tmp_path)
    g1 = datasets["g1"]
    assert [g1.episode(e).metadata["episode_index"] for e in range(2)] == [29, 59]
    assert [n.kind for n in g1.notes] == ["missing-episodes"]
    assert g1.streams["action"].names[0] == "kLeftShoulderPitch" and len(g1.streams["action"].names) == 26


@pytest.mark.parametrize(
    ("name", "camera"),
    [("gr00t", "observation.images.egoview"), ("starvla", "video.base_view_2"), ("reachy2", "observation.image")],
)
def test_declared_cameras_without_files_are_no_streams(datasets, name, camera):
    """They are noted, and asking for one says that it is declared but has no files."""
    dataset = datasets[name]
    assert camera not in dataset.streams
    assert any(n.kind == "missing-files" and n.stream == camera for n in dataset.notes)
    with pytest.raises(ConfigError, match=rf"stream '{camera}' is declared in info\.json but has no video file"):
        dataset.track(0, camera)


def test_totals_and_splits_that_disagree_are_notes(datasets):
    """reachy2 states 14983 frames and 50 episodes, gr00t 100 episodes: the content wins."""
    said = [n.message for n in datasets["reachy2"].notes if n.kind == "totals"]
    assert said == [
        "info.json says total_frames 14983, the metadata tables hold 899.",
        "info.json says split 'train' is '0:50', but there are 3 episodes.",
    ]
    assert [n.message for n in datasets["gr00t"].notes if n.kind == "totals"] == [
        "info.json says split 'train' is '0:100', but there are 5 episodes."
    ]


def test_gr00t_keeps_its_late_timestamps_and_others_are_uniform(datasets):
    """Rows of gr00t start at 0.05 s; everyone else's float32 seconds are the exact clock."""
    last = np.array([0, 415])
    assert datasets["gr00t"].step_times_ns(0, last).tolist() == [49_999_952, 20_799_980_164]
    assert datasets["made"].step_times_ns(3, np.array([0, 1, 74])).tolist() == [0, 50_000_000, 3_700_000_000]
    assert datasets["g1"].step_times_ns(0, np.array([1, 220])).tolist() == [33_333_333, 7_333_333_333]


def test_starvla_pickled_columns_are_never_streams(datasets):
    """21 binary columns are named in one note and not read."""
    (note,) = [n for n in datasets["starvla"].notes if n.kind == "column"]
    assert note.message.startswith("21 columns of binary are not read: 'annotation.tcp_3d_trace'")


def test_starvla_nested_episode_metadata_is_kept(datasets):
    """Large nested task_data comes on request."""
    metadata = datasets["starvla"].episode(0).metadata
    assert metadata["tasks"] == ["Move the potato to the top of the cooking utensils."]
    assert metadata["task_data"]["original_episode_name"]


def test_lerobot_v1_folders_are_refused_by_name(real_data):
    """v1 is not supported in place yet, and says so."""
    for folder in sorted((real_data / "lerobot_v1").iterdir()):
        if folder.is_dir():
            with pytest.raises(
                (SourceError, ConfigError), match=r"LeRobot v1 dataset, which is not supported in place yet"
            ):
                open_dataset(folder)
