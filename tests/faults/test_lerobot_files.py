"""Damaged, lying and hostile LeRobot folders: a precise error, never a hang, a crash or wrong data."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trajload.errors import ConfigError, DecodeError, SourceError, TrajloadError
from trajload.sources.lerobot import LeRobotSource

CAMERA = "observation.images.top"
DATA_1 = "data/chunk-000/episode_000001.parquet"
VIDEO_1 = f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


@pytest.fixture
def v2(tmp_path: Path, maker: ModuleType) -> Path:
    return maker.make_v2(tmp_path / "d", [8, 6])


@pytest.fixture
def v3(tmp_path: Path, maker: ModuleType) -> Path:
    return maker.make_v3(tmp_path / "d", [8, 6, 5], per_file=3, per_video=3)


def open_(root: Path) -> LeRobotSource:
    return LeRobotSource(root, cache_dir=root.parent / "cache")


def read(root: Path, episode: int, stream: str) -> object:
    track = open_(root).track(episode, stream)
    return track.reader.read_rows(np.arange(track.num_rows)) if hasattr(track, "reader") else track


def rewrite(path: Path, **columns: pa.Array) -> None:
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (LFS, r"it is a Git LFS pointer, not the data; run 'git lfs pull'"),
        (b"", r"it is empty \(0 bytes\)"),
        (b"<html>404</html>", r"its 16 bytes start with b'<html>40'"),
        ("no footer", r"start as parquet but end without the footer, so it is truncated"),
    ],
    ids=["lfs pointer", "empty", "html", "no footer"],
)
def test_data_file_that_is_no_parquet_says_what_it_is(v2, content, said):
    """The file, the episode and what its bytes look like are named."""
    path = v2 / DATA_1
    path.write_bytes(path.read_bytes()[:-100] if content == "no footer" else content)
    with pytest.raises(
        SourceError, match=rf"'{DATA_1}' is not readable as parquet: .*{said}.*episode=episode_000001 stream=action"
    ):
        read(v2, 1, "action")


@pytest.mark.parametrize("file", ["meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"])
def test_v3_metadata_that_is_no_parquet_is_named_at_opening(v3, file):
    """Metadata tables are read at opening, and named there."""
    (v3 / file).write_bytes(LFS)
    with pytest.raises(SourceError, match=rf"'{file}' is not readable as parquet: it is a Git LFS pointer"):
        open_(v3)


def test_flipped_bytes_in_parquet_pages_are_an_error(v2):
    """Pages that cannot be decoded are a damaged file."""
    path = v2 / DATA_1
    data = bytearray(path.read_bytes())
    data[4:900] = bytes(b ^ 0xFF for b in data[4:900])
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"the parquet pages cannot be decoded: the file is damaged"):
        read(v2, 1, "observation.state")


@pytest.mark.parametrize("cut", [0, 3])
def test_v2_rows_of_another_count_than_promised_name_both(v2, cut):
    """6 steps promised, another number of rows there."""
    path = v2 / DATA_1
    table = pq.read_table(path)
    pq.write_table(table.slice(0, cut) if cut else pa.concat_tables([table, table]), path)
    with pytest.raises(SourceError, match=rf"the data file has {cut or 12} rows, but the metadata promise 6 steps"):
        read(v2, 1, "action")


def test_v3_rows_of_another_count_than_promised_name_both(v3):
    """The shared file has 5 rows of an episode that promises 6; its neighbours stay readable."""
    path = v3 / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(0, 9), table.slice(10)]), path)
    with pytest.raises(
        SourceError, match=r"the data file has 5 rows of episode_index 1, but the metadata promise 6 steps"
    ):
        read(v3, 1, "action")
    np.testing.assert_array_equal(np.asarray(read(v3, 2, "action"))[:, 0], 2000 + 2 * np.arange(5))


def test_v3_scattered_rows_are_refused(v3):
    """Rows of one episode that do not stand together are no window."""
    path = v3 / "data" / "chunk-000" / "file-000.parquet"
    index = np.repeat([0, 1, 2], [8, 6, 5])
    index[[0, 9]] = [1, 0]
    rewrite(path, episode_index=pa.array(index))
    with pytest.raises(SourceError, match=r"rows of episode_index 0 do not stand together: 8 rows lie between 1 and 9"):
        read(v3, 0, "action")


def test_task_index_outside_the_table_is_named(v2):
    """An index without a string is an error, not an empty task."""
    rewrite(v2 / DATA_1, task_index=pa.array([1, 1, 9, 1, 1, 1]))
    with pytest.raises(SourceError, match=r"task_index 9 is no task: the table of tasks has 2, indices \[0, 1\]"):
        read(v2, 1, "task")


def test_column_that_changes_its_type_is_named(v2):
    """Numbers in the first file, strings in the second."""
    rewrite(v2 / DATA_1, **{"next.reward": pa.array(["a"] * 6)})
    with pytest.raises(SourceError, match=r"the column holds no numbers here, but did in the first data file"):
        read(v2, 1, "next.reward")


def test_column_that_changes_its_width_is_named(v2):
    """Two components in the first file, three in the second."""
    rewrite(v2 / DATA_1, action=pa.array([[1.0, 2.0, 3.0]] * 6))
    with pytest.raises(SourceError, match=r"rows have shape \(3,\), expected \(2,\) as in the first data file"):
        read(v2, 1, "action")


@pytest.mark.parametrize("num_frames", [1, 5])
def test_v2_video_with_fewer_frames_than_rows_names_both(v2, maker, num_frames):
    """A video that is too short is refused when its track is asked for."""
    maker.write_video(v2 / VIDEO_1, [maker.picture(1, s) for s in range(num_frames)])
    with pytest.raises(
        SourceError,
        match=rf"the video has {num_frames} frames, but the episode has 6 steps.*shard={VIDEO_1} episode=episode_000001",
    ):
        read(v2, 1, CAMERA)


def test_v2_video_with_spare_frames_is_used_and_noted(v2, maker):
    """Frames after the last row are left; a note says so."""
    maker.write_video(v2 / VIDEO_1, [maker.picture(1, s) for s in range(9)])
    dataset = open_(v2)
    assert dataset.track(1, CAMERA).num_rows == 6
    assert [(n.kind, n.message) for n in dataset.notes] == [
        ("length", f"video '{VIDEO_1}' has 9 frames for 6 steps; the first 6 are used.")
    ]


def test_v2_video_at_another_rate_is_refused(v2, maker):
    """Twice as many frames at twice the rate are not the episode's first half."""
    maker.write_video(v2 / VIDEO_1, [maker.picture(1, s) for s in range(12)], fps=40)
    with pytest.raises(
        SourceError, match=r"12 frames for 6 steps, and frame 5 stands at 0\.1250 s where step 5 is at 0\.2500 s"
    ):
        read(v2, 1, CAMERA)


def test_v3_video_and_metadata_that_disagree_name_the_numbers(v3, maker):
    """A shared video that was replaced by a shorter one."""
    maker.write_video(v3 / "videos" / CAMERA / "chunk-000" / "file-000.mp4", [maker.picture(0, s) for s in range(16)])
    with pytest.raises(
        SourceError, match=r"the video ends too early: it has 16 frames, and the episode needs 5 from frame 14"
    ):
        read(v3, 2, CAMERA)
    assert open_(v3).track(1, CAMERA).first_frame == 8


def test_v3_timestamps_that_span_another_count_name_both(v3):
    """from and to that do not span the episode's steps."""
    for path in (v3 / "meta" / "episodes").rglob("*.parquet"):
        table = pq.read_table(path)
        name = f"videos/{CAMERA}/to_timestamp"
        shifted = pa.array([value + 0.1 for value in table.column(name).to_pylist()])
        pq.write_table(table.set_column(table.column_names.index(name), name, shifted), path)
    with pytest.raises(
        SourceError,
        match=r"timestamps 0\.400000 to 0\.800000 s span 8 frames \(from frame 8\), but the episode has 6 steps",
    ):
        read(v3, 1, CAMERA)


@pytest.mark.parametrize("content", [LFS, b"", b"this is no video\n" * 50], ids=["lfs pointer", "empty", "text"])
@pytest.mark.parametrize("episode", [0, 1], ids=["first", "later"])
def test_video_that_is_none_fails_when_asked_for_and_state_stays_readable(v2, content, episode):
    """A folder cloned without its large files still gives state and actions; the camera says what its file is."""
    path = v2 / VIDEO_1.replace("000001", f"00000{episode}")
    path.write_bytes(content)
    said = {b"v": "Git LFS pointer", b"": "0 bytes", b"t": "not a readable video"}[content[:1]]
    with pytest.raises((SourceError, DecodeError), match=rf"{said}.*stream=observation\.images\.top"):
        read(v2, episode, CAMERA)
    assert len(read(v2, episode, "action")) == [8, 6][episode]
    if episode == 0:
        assert [n.kind for n in open_(v2).notes] == ["unreadable"]


def test_truncated_video_is_an_error(v2):
    """Half an mp4 has no index of its packets."""
    path = v2 / VIDEO_1
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises((SourceError, DecodeError), match=r"episode=episode_000001 stream=observation\.images\.top"):
        read(v2, 1, CAMERA)


@pytest.mark.parametrize("field", ["data_path", "video_path"])
@pytest.mark.parametrize(
    "text", ["../{episode_index:06d}.parquet", "/etc/passwd{episode_index}", "a/../../{episode_index}"]
)
def test_path_patterns_that_leave_the_folder_are_refused(v2, maker, field, text):
    """info.json cannot point outside."""
    maker.edit_info(v2, **{field: text})
    with pytest.raises(ConfigError, match=r"leaves the dataset folder"):
        open_(v2)


@pytest.mark.parametrize(
    "text", ["{episode_index.__class__.__mro__}", "{video_key!r}", "{episode_index:{episode_chunk}}"]
)
def test_path_patterns_with_python_in_them_are_refused(v2, maker, text):
    """Format strings of info.json cannot reach attributes."""
    maker.edit_info(v2, data_path=f"data/{text}.parquet")
    with pytest.raises(ConfigError, match=r"data_path .* is unusable: expected only the fields"):
        open_(v2)


@pytest.mark.parametrize("name", ["../../secret", "/etc/x", "a/b"])
@pytest.mark.parametrize("dtype", ["video", "float32"])
def test_feature_names_that_are_paths_are_refused_or_left_out(v2, maker, name, dtype):
    """A feature named like a path opens no file outside the folder."""
    maker.edit_info(v2, features=maker.features() | {name: {"dtype": dtype, "shape": [4, 4, 3], "names": None}})
    try:
        dataset = open_(v2)
    except ConfigError as err:
        assert "leaves the dataset folder" in str(err) or "is invalid" in str(err)
    else:
        assert name not in dataset.streams and any(n.stream == name for n in dataset.notes)


def test_picture_paths_that_leave_the_folder_are_refused(v2):
    """A path inside a data cell is checked as well."""
    for episode, length in enumerate([8, 6]):
        path = v2 / DATA_1.replace("000001", f"00000{episode}")
        cells = pa.array(
            [{"bytes": None, "path": "../../secret.png"}] * length,
            type=pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        )
        pq.write_table(pq.read_table(path).append_column("cam", cells), path)
    info = v2 / "meta" / "info.json"
    raw = json.loads(info.read_text())
    raw["features"]["cam"] = {"dtype": "image", "shape": [4, 4, 3], "names": ["height", "width", "channels"]}
    info.write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"'\.\./\.\./secret\.png' leaves the dataset folder"):
        read(v2, 0, "cam")


@pytest.mark.parametrize("content", [LFS, b"", b"[1, 2]", b"\xff\xfe{", b'{"fps": 20}'])
def test_info_that_is_no_info_is_named(v2, content):
    """Whatever stands in info.json, the error names the file."""
    (v2 / "meta" / "info.json").write_bytes(content)
    with pytest.raises(TrajloadError, match=r"meta/info\.json"):
        open_(v2)


@pytest.mark.parametrize("features", [[], {"a": 1}, {"a": {"shape": [1]}}, {"a": {"dtype": "float32", "shape": "x"}}])
def test_features_that_are_none_are_named(v2, maker, features):
    """Features of another form are refused, not half read."""
    maker.edit_info(v2, features=features)
    with pytest.raises(SourceError, match=r"meta/info\.json is unusable"):
        open_(v2)


def test_nan_timestamp_names_its_step(v2):
    """A clock with a hole is refused where it is asked for."""
    rewrite(v2 / DATA_1, timestamp=pa.array(np.array([0, 0.05, np.nan, 0.15, 0.2, 0.25], dtype=np.float32)))
    with pytest.raises(SourceError, match=r"timestamp of step 2 is nan.*episode=episode_000001"):
        open_(v2).step_times_ns(1, np.array([0]))


@pytest.mark.parametrize("fps", ["1e999999999", 1e-300, 1e300, float("inf"), 0, -20, True, "x", None, [20]])
def test_rates_that_are_none_are_refused_at_once(v2, fps):
    """The exact value of '1e999999999' has a thousand million digits: it is never made."""
    info = json.loads((v2 / "meta/info.json").read_text())
    (v2 / "meta/info.json").write_text(json.dumps({**info, "fps": fps}))
    with pytest.raises(
        SourceError, match=r"in meta/info\.json is unusable: expected a rate above 0 Hz, from 1e-06 to 1000000"
    ):
        open_(v2)


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_column_that_stands_twice_is_refused(version, request):
    """Which of two columns of one name is meant cannot be known."""
    root = request.getfixturevalue(version)
    path = sorted((root / "data").rglob("*.parquet"))[0]
    table = pq.read_table(path)
    pq.write_table(table.append_column("action", table["action"]), path)
    with pytest.raises(SourceError, match=r"has 2 columns named 'action': expected 1\. Drop all but one\."):
        open_(root)


def test_numbers_in_a_column_of_strings_are_refused(v2):
    """A list of numbers is not written out as if it were an instruction."""
    path = v2 / "data/chunk-000/episode_000000.parquet"
    rewrite(path, action=pa.array(["x"] * 8))
    source = open_(v2)
    assert [n.message for n in source.notes if n.stream == "action"] == [
        "info.json says float64 for 'action', the files hold strings."
    ]
    with pytest.raises(
        SourceError, match=rf"holds values that are no strings here, but strings in the first.*shard={DATA_1}"
    ):
        read(v2, 1, "action")


@pytest.mark.parametrize("name", ["meta/episodes.jsonl", "meta/tasks.jsonl"])
def test_metadata_that_git_lfs_did_not_fetch_say_so(v2, name):
    """Every file of a repository may be a pointer."""
    (v2 / name).write_bytes(LFS)
    with pytest.raises(
        SourceError, match=rf"file '{name}' is a Git LFS pointer, not the file itself; run 'git lfs pull'"
    ):
        open_(v2)


def test_camera_named_like_the_task_stream_is_no_crash(v3):
    """info.json may declare anything; the strings that are there win over the video that is not."""
    info = json.loads((v3 / "meta/info.json").read_text())
    info["features"]["task"] = {"dtype": "video", "shape": [1, 1, 3], "names": None}
    (v3 / "meta/info.json").write_text(json.dumps(info))
    source = open_(v3)
    assert source.streams["task"].is_text
    assert len(read(v3, 0, "task")) == 8


def test_dataset_without_streams_says_so(v2):
    """An empty table of episodes leaves nothing to read; the argument `streams` is not what is wrong."""
    import trajload as tl

    (v2 / "meta/episodes.jsonl").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"dataset 'd' has no stream that can be read: it has 0 episodes\."):
        tl.Loader(open_(v2), window=tl.Window(num_steps=1), global_batch_size=1)
