"""Generated LeRobot folders of every version, read in place."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from in_threads import in_threads

from trajload.errors import ConfigError, SourceError, WindowError
from trajload.refs import TableTrack, VideoTrack
from trajload.sources.lerobot import LeRobotSource
from trajload.types import Modality

V2_LENGTHS = [10, 7, 25, 4]
V3_LENGTHS = [10, 7, 25, 4, 9, 13, 8, 5, 6, 11]
CAMERA = "observation.images.top"


@pytest.fixture(params=["v2.1", "v3.0"])
def dataset(request, v2_folder, v3_folder, index_cache_dir) -> LeRobotSource:
    return LeRobotSource(v2_folder if request.param == "v2.1" else v3_folder, cache_dir=index_cache_dir)


def rows(dataset, episode, stream, wanted=None):
    track = dataset.track(episode, stream)
    assert isinstance(track, TableTrack)
    return track.reader.read_rows(np.arange(track.num_rows) if wanted is None else np.asarray(wanted))


def test_lengths_keys_and_termination_come_from_the_metadata(dataset):
    """Columns of the table of episodes; LeRobot does not say whether an end is terminal."""
    lengths = V2_LENGTHS if dataset.kind == "lerobot-v2.1" else V3_LENGTHS
    assert dataset.num_steps_E.tolist() == lengths and dataset.num_steps_E.dtype == np.int64
    assert dataset.terminated_E.tolist() == [-1] * len(lengths)
    assert dataset.episode_key(2) == "episode_000002"
    assert dataset.episode(1).terminated is None
    assert dataset.episode(1).metadata["tasks"] == ["lift the cube"]
    assert dataset.notes == []


def test_streams_have_modality_shape_and_dtype_of_the_files(dataset):
    """Scalars are (), vectors (D,), pictures (H, W, C); bookkeeping columns are no streams."""
    specs = {
        name: (spec.modality, spec.shape, spec.dtype, spec.encoding, spec.names)
        for name, spec in dataset.streams.items()
    }
    assert specs == {
        "observation.state": (Modality.PROPRIOCEPTION, (3,), "float32", "table", ("x", "y", "z")),
        "action": (Modality.ACTION, (2,), "float64", "table", ("left", "right")),
        "next.reward": (Modality.REWARD, (), "float32", "table", None),
        "next.done": (Modality.METADATA, (), "bool", "table", None),
        CAMERA: (Modality.RGB, (32, 48, 3), "uint8", "mp4", None),
        "task": (Modality.LANGUAGE, (), "str", "table", None),
    }


def test_rows_of_every_episode_are_its_own(dataset, maker):
    """Values tell their episode and step: none comes from a neighbour in the same file."""
    for episode, length in enumerate(dataset.num_steps_E.tolist()):
        expected = maker.columns(episode, length, 0, 20)
        for stream in ("observation.state", "action", "next.reward", "next.done"):
            got = rows(dataset, episode, stream)
            want = np.array(expected[stream].to_pylist(), dtype=dataset.streams[stream].dtype)
            np.testing.assert_array_equal(got, want)
        assert rows(dataset, episode, "task") == [maker.TASKS[episode % 2]] * length


def test_rows_outside_the_episode_are_refused_though_the_file_goes_on(dataset):
    """A shared file's next rows belong to another episode."""
    with pytest.raises(WindowError, match=r"rows \[8, 12\) leave the episode: it has 10 steps"):
        rows(dataset, 0, "action", np.arange(8, 12))
    with pytest.raises(WindowError, match=r"rows \[-1, 0\) leave the episode"):
        rows(dataset, 1, "action", [-1])


def test_frames_of_every_episode_equal_a_sequential_decode(dataset):
    """Frames through tracks are bit-equal to those of the file played from its start, for every episode."""
    import av

    played: dict[str, list[np.ndarray]] = {}
    for episode, length in enumerate(dataset.num_steps_E.tolist()):
        track = dataset.track(episode, CAMERA)
        assert isinstance(track, VideoTrack) and track.num_rows == length
        if track.file not in played:
            with av.open(str(Path(dataset.path, track.file))) as container:
                played[track.file] = [f.to_ndarray() for f in container.decode(video=0)]
        frames = played[track.file][track.first_frame : track.first_frame + length]
        for step in (0, length // 2, length - 1):
            np.testing.assert_array_equal(decode(dataset, track, step), frames[step])


def decode(dataset, track, step) -> np.ndarray:
    """Decode one frame from its packets alone."""
    import av

    index = track.index
    frame = track.first_frame + step
    last = int(index.packet_of_frame_F[frame])
    codec = av.CodecContext.create(index.codec, "r")
    codec.extradata = index.extradata
    out = {}
    packets = [*range(int(index.seek_of_frame_F[frame]), len(index.pts_P)), None]
    data = Path(dataset.path, track.file).read_bytes()
    for number in packets:
        packet = None
        if number is not None:
            offset = int(index.offset_P[number])
            packet = av.Packet(data[offset : offset + int(index.size_P[number])])
            packet.pts = int(index.pts_P[number])
        out |= {f.pts: f.to_ndarray() for f in codec.decode(packet)}
    return out[int(index.pts_P[last])]


def test_v3_episodes_may_begin_inside_a_group_of_pictures(v3_folder, index_cache_dir):
    """A shared video's episode starts at the frame its timestamp names, keyframe or not."""
    dataset = LeRobotSource(v3_folder, cache_dir=index_cache_dir)
    starts = [dataset.track(e, CAMERA).first_frame for e in range(10)]
    assert starts == [0, 10, 0, 25, 0, 9, 0, 8, 0, 6]
    index = dataset.track(1, CAMERA).index
    assert not index.is_keyframe_P[index.packet_of_frame_F[10]]


def test_v2_and_v3_have_uniform_step_times(dataset):
    """float32 timestamps on the clock give exact nanoseconds."""
    assert dataset.step_times_ns(2, np.array([[0, 1], [3, 20]])).tolist() == [[0, 50_000_000], [150_000_000, 10**9]]
    with pytest.raises(WindowError, match=r"steps \[25, 26\) leave episode 'episode_000002': it has 25 steps"):
        dataset.step_times_ns(2, np.array([25]))


def test_stepwise_streams_have_no_times_of_their_own(dataset):
    """Asking for them is answered with what to ask instead."""
    with pytest.raises(ConfigError, match=r"'action' is stepwise: LeRobot datasets hold no clocked streams"):
        dataset.stream_times_ns(0, "action")


def test_dataset_survives_pickling(dataset):
    """A worker process gets the same rows and frames."""
    again = pickle.loads(pickle.dumps(dataset))
    np.testing.assert_array_equal(rows(again, 1, "action"), rows(dataset, 1, "action"))
    assert again.track(1, CAMERA).first_frame == dataset.track(1, CAMERA).first_frame
    assert again.digest == dataset.digest


def test_dataset_is_opened_again_by_what_it_says_of_itself(dataset):
    """A few hundred bytes in place of its tables; the options it was opened with go along, and the digest is compared."""
    how = pickle.loads(pickle.dumps(dataset.reopening()))
    assert len(pickle.dumps(how)) < 1000
    again = how.open()
    assert (again.digest, again.name, again.num_episodes) == (dataset.digest, dataset.name, dataset.num_episodes)
    np.testing.assert_array_equal(rows(again, 1, "action"), rows(dataset, 1, "action"))
    with pytest.raises(SourceError, match=r"has changed since this process was told of it"):
        replace(how, digest="0" * 64).open()


def test_many_threads_read_the_same_values(dataset):
    """Threads over all episodes and streams agree with one thread."""
    fresh = pickle.loads(pickle.dumps(dataset))
    want = [rows(dataset, e, "action").copy() for e in range(dataset.num_episodes)]
    wrong: list[int] = []

    def read(seed: int) -> None:
        for e in np.roll(np.arange(fresh.num_episodes), seed).tolist():
            if not np.array_equal(rows(fresh, e, "action"), want[e]) or fresh.track(e, CAMERA).num_rows != len(want[e]):
                wrong.append(e)

    in_threads(read, range(6))
    assert wrong == []


def test_stats_file_is_given_for_the_streams_there_are(tmp_path, maker):
    """meta/stats.json as it is, bookkeeping columns left out."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    assert LeRobotSource(root).stats() == {}
    (root / "meta" / "stats.json").write_text(json.dumps({"action": {"mean": [1, 2]}, "index": {"mean": [0]}}))
    assert LeRobotSource(root).stats() == {"action": {"mean": [1, 2]}}


def test_digest_follows_metadata_and_files_but_not_their_place_or_time(tmp_path, v2_folder, index_cache_dir):
    """A copy has the same digest; a file of another size, a removed file or edited metadata another one."""

    def digest(root: Path, **options) -> str:
        return LeRobotSource(root, cache_dir=index_cache_dir, **options).digest

    copy = shutil.copytree(v2_folder, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    base = digest(v2_folder)
    assert digest(copy) == base
    (copy / "README.md").write_text("words beside the data change nothing")
    assert digest(copy) == base
    tasks = copy / "meta" / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace("push", "pull"))
    edited = digest(copy)
    (copy / "data" / "chunk-001" / "episode_000003.parquet").unlink()
    assert len({base, edited, digest(copy, missing="skip")}) == 3


def test_absent_data_files_are_refused_or_skipped_by_choice(tmp_path, v2_folder, index_cache_dir):
    """The default names the first file and the counts; skip keeps the others under their own index."""
    root = shutil.copytree(v2_folder, tmp_path / "d")
    for episode in (0, 3):
        (root / "data" / f"chunk-00{episode // 2}" / f"episode_00000{episode}.parquet").unlink()
    with pytest.raises(
        SourceError,
        match=r"'data/chunk-000/episode_000000\.parquet' does not exist; 2 of 4 episodes lack theirs\. Restore them, or open the other 2 with missing='skip'",
    ):
        LeRobotSource(root, cache_dir=index_cache_dir)
    dataset = LeRobotSource(root, cache_dir=index_cache_dir, missing="skip")
    assert [dataset.episode_key(e) for e in range(2)] == ["episode_000001", "episode_000002"]
    assert dataset.num_steps_E.tolist() == [7, 25]
    assert rows(dataset, 0, "observation.state")[0].tolist() == pytest.approx([100, 100.1, 100.2])
    assert [(n.kind, n.file) for n in dataset.notes] == [("missing-episodes", "data/chunk-000/episode_000000.parquet")]


def test_no_data_file_at_all_is_refused_even_when_skipping(tmp_path, maker):
    """Nothing to read is an error under every policy."""
    root = maker.make_v2(tmp_path / "d", [3, 4], camera=False)
    shutil.rmtree(root / "data")
    with pytest.raises(SourceError, match=r"2 of 2 episodes lack theirs, so there is nothing to read"):
        LeRobotSource(root, missing="skip")


def test_camera_absent_in_some_episodes_is_refused_or_missing_there(tmp_path, v2_folder, index_cache_dir):
    """The default names the file; skip gives the episode without the camera."""
    root = shutil.copytree(v2_folder, tmp_path / "d")
    (root / "videos" / "chunk-000" / CAMERA / "episode_000001.mp4").unlink()
    with pytest.raises(
        SourceError,
        match=r"video file '.*episode_000001\.mp4' does not exist; 1 of 4 .*stream=observation\.images\.top",
    ):
        LeRobotSource(root, cache_dir=index_cache_dir)
    dataset = LeRobotSource(root, cache_dir=index_cache_dir, missing="skip")
    assert dataset.track(1, CAMERA) is None
    assert isinstance(dataset.track(2, CAMERA), VideoTrack)
    assert [(n.kind, n.stream) for n in dataset.notes] == [("missing-files", CAMERA)]


def test_camera_without_any_file_is_left_out_and_said_so(tmp_path, maker):
    """A declared camera that nobody has is no stream; asking for it says why."""
    root = maker.make_v3(tmp_path / "d", [3, 4])
    shutil.rmtree(root / "videos")
    dataset = LeRobotSource(root)
    assert CAMERA not in dataset.streams
    assert [(n.kind, n.stream) for n in dataset.notes] == [("missing-files", CAMERA)]
    with pytest.raises(
        ConfigError,
        match=r"'observation\.images\.top' is declared in info\.json but has no video file in the folder\. The dataset 'd' has 'observation\.state'",
    ):
        dataset.spec(CAMERA)


def test_info_that_disagrees_with_the_files_is_noted_and_the_files_win(tmp_path, maker):
    """Wrong totals, splits, dtypes, shapes and rates become notes."""
    root = maker.make_v2(tmp_path / "d", [5, 4])
    features = maker.features()
    features["action"] |= {"dtype": "float32", "shape": [7]}
    features[maker.CAMERA]["shape"] = [480, 640, 3]
    maker.edit_info(root, total_frames=99, splits={"train": "0:50"}, features=features, fps=10)
    dataset = LeRobotSource(root, cache_dir=tmp_path / "c")
    assert (dataset.streams["action"].dtype, dataset.streams["action"].shape) == ("float64", (2,))
    assert dataset.streams[maker.CAMERA].shape == (32, 48, 3)
    assert sorted((n.kind, n.stream) for n in dataset.notes if n.stream) == [
        ("dtype", "action"),
        ("rate", maker.CAMERA),
        ("shape", "action"),
        ("shape", maker.CAMERA),
    ]
    totals = [n.message for n in dataset.notes if n.kind == "totals"]
    assert totals == [
        "info.json says total_frames 99, the metadata tables hold 9.",
        "info.json says split 'train' is '0:50', but there are 2 episodes.",
    ]


def test_annotations_of_modality_json_are_task_strings(tmp_path, maker):
    """GR00T's annotation columns index the table of tasks; others stay numbers."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    maker.add_column(root, "annotation.human.task", pa.array([1, 0, 1]), "int64")
    maker.add_column(root, "annotation.count", pa.array([4, 5, 6]), "int64")
    (root / "meta" / "modality.json").write_text(json.dumps({"annotation": {"human.task": {}}}))
    dataset = LeRobotSource(root)
    assert rows(dataset, 0, "annotation.human.task") == [maker.TASKS[1], maker.TASKS[0], maker.TASKS[1]]
    assert rows(dataset, 0, "annotation.count").tolist() == [4, 5, 6]


def test_binary_reserved_and_undeclared_columns_are_noted_not_read(tmp_path, maker):
    """What cannot be a stream is left out, with the reason on request."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    maker.add_column(root, "annotation.blob", pa.array([b"\x80\x04."] * 3), "binary")
    maker.add_column(root, "epoch", pa.array([1, 2, 3]), "int64")
    path = root / "data" / "chunk-000" / "episode_000000.parquet"
    pq.write_table(pq.read_table(path).append_column("extra", pa.array([1, 2, 3])), path)
    dataset = LeRobotSource(root)
    assert not {"annotation.blob", "epoch", "extra"} & set(dataset.streams)
    with pytest.raises(ConfigError, match=r"'annotation\.blob' is a column of binary, which is not read"):
        dataset.track(0, "annotation.blob")
    with pytest.raises(ConfigError, match=r"'epoch' has a name reserved for a batch key"):
        dataset.spec("epoch")
    assert any("'extra' are not declared in info.json" in n.message for n in dataset.notes)
    assert any("nothing read here is ever unpickled" in n.message for n in dataset.notes)


def test_own_task_column_wins_over_task_index(tmp_path, maker):
    """A string column named task is the stream task."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    maker.add_column(root, "task", pa.array(["a", "b", "c"]), "string")
    assert rows(LeRobotSource(root), 0, "task") == ["a", "b", "c"]


def test_folder_without_tasks_has_no_task_stream_and_says_so(tmp_path, maker):
    """Without a table of tasks the indices mean nothing."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    (root / "meta" / "tasks.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"'task' has no strings: the folder has no table of tasks"):
        LeRobotSource(root).spec("task")


def test_list_of_one_and_scalar_are_what_the_file_says(tmp_path, maker):
    """Shape (1,) written as a scalar is (), written as a list (1,); as LeRobot itself delivers them."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    maker.add_column(root, "action.grip", pa.array([[1.0], [2.0], [3.0]]), "float64")
    dataset = LeRobotSource(root)
    assert dataset.streams["action.grip"].shape == (1,) and dataset.streams["next.reward"].shape == ()
    assert rows(dataset, 0, "action.grip").shape == (3, 1) and rows(dataset, 0, "next.reward").shape == (3,)


def test_empty_episodes_and_datasets_open(tmp_path, maker):
    """An episode of 0 steps has tracks of 0 rows; a dataset of no episode opens."""
    root = maker.make_v2(tmp_path / "d", [0, 3], camera=False)
    dataset = LeRobotSource(root)
    assert dataset.streams["action"].shape == (2,)
    assert dataset.track(0, "action").num_rows == 0
    assert rows(dataset, 0, "action").shape == (0, 2)
    none = maker.make_v2(tmp_path / "n", [], camera=False)
    assert LeRobotSource(none).num_episodes == 0


def test_v3_rows_out_of_metadata_order_are_found_by_their_index(tmp_path, maker):
    """Episodes may stand in any order in a data file: the episode_index column says where."""
    root = maker.make_v3(tmp_path / "d", [3, 4], camera=False)
    path = root / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(3, 4), table.slice(0, 3)]), path)
    dataset = LeRobotSource(root)
    assert rows(dataset, 0, "action")[0].tolist() == [0, 1]
    assert rows(dataset, 1, "action")[0].tolist() == [1000, 1001]


def test_folder_reached_through_links_opens(tmp_path, v2_folder, index_cache_dir):
    """Model hubs lay datasets out as links into a blob cache."""
    root = tmp_path / "snapshot"
    for path in v2_folder.rglob("*"):
        if path.is_file():
            link = root / path.relative_to(v2_folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    dataset = LeRobotSource(root, cache_dir=index_cache_dir)
    assert dataset.digest == LeRobotSource(v2_folder, cache_dir=index_cache_dir).digest


def test_read_only_folder_and_unwritable_cache_open_with_one_note(tmp_path, maker):
    """Nothing is written beside the data; a cache that cannot be kept is noted once."""
    root = maker.make_v2(tmp_path / "d", [5, 4])
    for path in [*root.rglob("*"), root]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    (tmp_path / "file").write_text("x")
    dataset = LeRobotSource(root, cache_dir=tmp_path / "file" / "c")
    for episode in range(2):
        assert dataset.track(episode, CAMERA).num_rows == [5, 4][episode]
    assert [n.kind for n in dataset.notes] == ["cache"]
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
