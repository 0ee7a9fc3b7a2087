"""LeRobot to native: every value, frame, task and time the same."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trajload.convert import convert
from trajload.decode.context import DecodeContext
from trajload.decode.plan import plan_reads
from trajload.decode.rows import decode_rows, read_text, row_shape
from trajload.errors import ConfigError, SourceError
from trajload.shards.verify import verify
from trajload.shards.video_encode import VideoEncode
from trajload.sources.base import Dataset
from trajload.sources.lerobot import LeRobotSource
from trajload.sources.open import open as open_dataset
from trajload.spec import Image, Signal, Window

CAMERA = "observation.images.top"


def whole(dataset: Dataset, episode: int, stream: str, max_frames: int = 1000):
    """Return the rows of a stream as a batch would hold them: all, or of pictures `max_frames` spread over the episode."""
    track, spec = dataset.track(episode, stream), dataset.spec(stream)
    if track is None:
        return None
    num = int(dataset.num_steps_E[episode])
    context = DecodeContext()
    if spec.is_text:
        if not hasattr(track, "reader"):
            blobs = [dataset.store.read(r) for r in plan_reads(track, np.array([0]))]
            return [
                read_text(track, i if track.num_rows > 1 else 0, blobs, spec=spec, context=context) for i in range(num)
            ]
        return [read_text(track, i, [], spec=spec, context=context) for i in range(num)]
    rows = np.unique(np.linspace(0, num - 1, min(num, max_frames if spec.is_picture else num)).astype(np.int64))
    request = Image() if spec.is_picture else Signal()
    shape, dtype = row_shape(spec, request)
    out = np.zeros((len(rows), *shape), dtype=dtype)
    blobs = [dataset.store.read(r) for r in plan_reads(track, rows)]
    decode_rows(track, rows, blobs, out, spec=spec, request=request, store=dataset.store, context=context)
    return out


def assert_equal_datasets(one: Dataset, two: Dataset, max_frames: int = 1000) -> None:
    assert one.num_steps_E.tolist() == two.num_steps_E.tolist()
    assert list(one.streams) == list(two.streams)
    for episode in range(one.num_episodes):
        assert one.episode_key(episode) == two.episode_key(episode)
        steps = np.arange(one.num_steps_E[episode])
        np.testing.assert_array_equal(one.step_times_ns(episode, steps), two.step_times_ns(episode, steps))
        for stream in one.streams:
            a, b = (whole(dataset, episode, stream, max_frames) for dataset in (one, two))
            if isinstance(a, list) or a is None:
                assert a == b, (episode, stream)
            else:
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b, err_msg=f"{episode} {stream}")


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_converted_dataset_equals_the_folder_it_came_from(v2_folder, v3_folder, cache, tmp_path, version):
    """All rows of all streams of all episodes, frames bit-equal, tasks and nanoseconds."""
    source = LeRobotSource(v2_folder if version == "v2" else v3_folder, cache_dir=cache)
    report = convert(source, tmp_path / "out")
    native = open_dataset(tmp_path / "out")
    assert native.kind == "native" and native.name == "cubes"
    assert_equal_datasets(source, native)
    assert (report.num_episodes, report.num_steps) == (source.num_episodes, source.num_steps)
    assert report.digest == native.digest and report.num_videos_encoded == 0
    assert verify(tmp_path / "out").ok


def test_v2_videos_are_stored_byte_for_byte(v2_folder, cache, tmp_path):
    """A file that is exactly one episode stands in the shard as it is."""
    report = convert(LeRobotSource(v2_folder, cache_dir=cache), tmp_path / "out")
    assert (report.num_videos_copied, report.num_videos_cut) == (3, 0)
    shard = (tmp_path / "out" / "shards" / "000000.tar").read_bytes()
    for path in v2_folder.rglob("*.mp4"):
        assert path.read_bytes() in shard


def test_v3_shared_videos_are_cut_without_encoding(v3_folder, cache, tmp_path):
    """Each episode of a shared file gets a video of its own, packets unchanged."""
    report = convert(LeRobotSource(v3_folder, cache_dir=cache), tmp_path / "out")
    assert (report.num_videos_copied, report.num_videos_cut, report.num_videos_encoded) == (0, 4, 0)


def test_windows_of_both_are_equal_batch_by_batch(v3_folder, cache, tmp_path):
    """A Loader gives the same batches from the folder and from its conversion."""
    from trajload.loader import Loader

    source = LeRobotSource(v3_folder, cache_dir=cache)
    convert(source, tmp_path / "out")
    options = {"window": Window(num_steps=6, pad="edge"), "global_batch_size": 5, "seed": 11, "num_workers": 0}
    with Loader(source, **options) as one, Loader(open_dataset(tmp_path / "out"), **options) as two:
        for step in (0, 3, 100):
            a, b = one.batch_at(step), two.batch_at(step)
            assert set(a) == set(b)
            for name in a:
                same = a[name] == b[name]
                assert same if isinstance(same, bool) else bool(same.all()), name


def test_reencoding_keeps_count_and_looks_and_shortens_groups(v3_folder, cache, tmp_path):
    """Asked for, frames are encoded anew: same count, near the same pixels, keyframes as wanted."""
    source = LeRobotSource(v3_folder, cache_dir=cache)
    report = convert(source, tmp_path / "out", reencode=VideoEncode(gop=4, crf=8))
    assert (report.num_videos_encoded, report.num_videos_cut) == (4, 0)
    native = open_dataset(tmp_path / "out")
    index = native.track(2, CAMERA).index
    assert np.diff(index.gop_start_G).max() == 4
    error = np.abs(whole(native, 2, CAMERA).astype(int) - whole(source, 2, CAMERA))
    assert error.mean() < 6
    np.testing.assert_array_equal(whole(native, 2, "action"), whole(source, 2, "action"))


def test_lossless_reencoding_keeps_every_pixel(v2_folder, cache, tmp_path):
    """FFV1 gives back the RGB that was decoded."""
    source = LeRobotSource(v2_folder, cache_dir=cache)
    convert(source, tmp_path / "out", reencode=VideoEncode(codec="ffv1"), episodes=[1])
    np.testing.assert_array_equal(whole(open_dataset(tmp_path / "out"), 0, CAMERA), whole(source, 1, CAMERA))


def test_chosen_episodes_keep_their_keys_and_order(v3_folder, cache, tmp_path):
    """`episodes=` takes positions; keys stay those of the source."""
    source = LeRobotSource(v3_folder, cache_dir=cache)
    seen: list[tuple[int, int]] = []
    convert(source, tmp_path / "out", episodes=[3, 0], progress=lambda done, num: seen.append((done, num)))
    native = open_dataset(tmp_path / "out")
    assert [native.episode_key(e) for e in range(2)] == ["episode_000003", "episode_000000"]
    assert native.num_steps_E.tolist() == [14, 20] and seen == [(1, 2), (2, 2)]


def test_small_shards_hold_the_same_dataset(v2_folder, cache, tmp_path):
    """The size of shards changes nothing but their number."""
    source = LeRobotSource(v2_folder, cache_dir=cache)
    report = convert(source, tmp_path / "out", shard_bytes=16 * 1024)
    assert report.num_shards == 3
    assert_equal_datasets(source, open_dataset(tmp_path / "out"))


def test_provenance_says_where_it_came_from(v2_folder, cache, tmp_path):
    """Source digest, converter, arguments and what the user adds stand in the manifest."""
    source = LeRobotSource(v2_folder, cache_dir=cache)
    convert(source, tmp_path / "out", provenance={"licence": "MIT"}, episodes=[0])
    provenance = open_dataset(tmp_path / "out").provenance()
    assert provenance["source"]["digest"] == source.digest and provenance["licence"] == "MIT"
    assert provenance["arguments"] == {"reencode": None, "episodes": ["episode_000000"]}


def test_report_is_json(v2_folder, cache, tmp_path):
    """Machines can read the report."""
    report = convert(LeRobotSource(v2_folder, cache_dir=cache), tmp_path / "out").to_json()
    assert json.loads(json.dumps(report))["num_steps"] == 62


def test_late_timestamps_become_explicit_step_times(tmp_path, maker):
    """A clock that is not uniform is written out."""
    root = maker.make_v2(tmp_path / "d", [5], camera=False)
    path = root / "data" / "chunk-000" / "episode_000000.parquet"
    table = pq.read_table(path)
    late = pa.array(np.arange(5) / 20 + 0.05)
    pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", late), path)
    convert(LeRobotSource(root), tmp_path / "out")
    times = open_dataset(tmp_path / "out").step_times_ns(0, np.arange(5))
    assert times.tolist() == [50_000_000, 100_000_000, 150_000_000, 200_000_000, 250_000_000]


def test_varying_tasks_become_one_string_per_step(tmp_path, maker):
    """Tasks that change within an episode keep their steps."""
    root = maker.make_v2(tmp_path / "d", [4], camera=False)
    path = root / "data" / "chunk-000" / "episode_000000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index("task_index"), "task_index", pa.array([0, 0, 1, 1])), path)
    convert(LeRobotSource(root), tmp_path / "out")
    assert whole(open_dataset(tmp_path / "out"), 0, "task") == [maker.TASKS[0]] * 2 + [maker.TASKS[1]] * 2


def test_camera_missing_in_an_episode_is_missing_in_the_result(tmp_path, maker, cache):
    """What missing="skip" leaves out stays out."""
    root = maker.make_v2(tmp_path / "d", [5, 4])
    (root / "videos" / "chunk-000" / CAMERA / "episode_000000.mp4").unlink()
    convert(LeRobotSource(root, cache_dir=cache, missing="skip"), tmp_path / "out")
    native = open_dataset(tmp_path / "out")
    assert native.track(0, CAMERA) is None and native.track(1, CAMERA).num_rows == 4


def test_empty_episode_is_left_out_and_reported(tmp_path, maker):
    """The native format has no episode of 0 steps."""
    report = convert(LeRobotSource(maker.make_v2(tmp_path / "d", [0, 3], camera=False)), tmp_path / "out")
    assert report.skipped == ["episode_000000: it has no steps"] and report.num_episodes == 1


def test_spare_frames_of_a_video_are_cut_off(tmp_path, maker, cache):
    """A video longer than its rows is stored with as many frames as steps."""
    root = maker.make_v2(tmp_path / "d", [6])
    maker.write_video(next(root.rglob("*.mp4")), [maker.picture(0, s) for s in range(9)])
    source = LeRobotSource(root, cache_dir=cache)
    assert convert(source, tmp_path / "out").num_videos_cut == 1
    assert_equal_datasets(source, open_dataset(tmp_path / "out"))


def test_video_in_a_container_that_cannot_be_indexed_is_remuxed(tmp_path, maker, cache):
    """Packets split by a transport stream come together in an mp4, frames the same."""
    root = maker.make_v2(tmp_path / "d", [12])
    path = next(root.rglob("*.mp4"))
    with av.open(str(path)) as container:
        played = [f.to_ndarray() for f in container.decode(video=0)]
    stream_file = tmp_path / "x.ts"
    with av.open(str(path)) as one, av.open(str(stream_file), "w", format="mpegts") as two:
        stream = two.add_stream_from_template(one.streams.video[0])
        for packet in one.demux(one.streams.video[0]):
            if packet.size:
                packet.stream = stream
                two.mux(packet)
    path.write_bytes(stream_file.read_bytes())
    source = LeRobotSource(root, cache_dir=cache)
    with pytest.raises(SourceError, match=r"is not one run of bytes in the file"):
        source.track(0, CAMERA)
    assert convert(source, tmp_path / "out").num_videos_remuxed == 1
    native = open_dataset(tmp_path / "out")
    track = native.track(0, CAMERA)
    assert track.num_rows == len(played) == 12


def test_embedded_pictures_are_stored_as_they_are(tmp_path, maker):
    """Picture bytes of a parquet column become members of the shard, unchanged."""
    import io

    from PIL import Image as Pictures

    root = maker.make_v2(tmp_path / "d", [2], camera=False)
    data = []
    for step in range(2):
        out = io.BytesIO()
        Pictures.fromarray(maker.picture(0, step)).save(out, "PNG")
        data.append(out.getvalue())
    path = root / "data" / "chunk-000" / "episode_000000.parquet"
    pq.write_table(pq.read_table(path).append_column("cam", pa.array([{"bytes": d} for d in data])), path)
    maker.edit_info(
        root, features=maker.features(camera=False) | {"cam": {"dtype": "image", "shape": [32, 48, 3], "names": None}}
    )
    source = LeRobotSource(root)
    convert(source, tmp_path / "out")
    assert_equal_datasets(source, open_dataset(tmp_path / "out"))
    shard = (tmp_path / "out" / "shards" / "000000.tar").read_bytes()
    assert all(one in shard for one in data)


def test_out_inside_the_source_is_refused(v2_folder, cache):
    """The source stays as it is."""
    source = LeRobotSource(v2_folder, cache_dir=cache)
    for out in (v2_folder, v2_folder / "native"):
        with pytest.raises(ConfigError, match=r"lies inside the source"):
            convert(source, out)
    assert not (v2_folder / "native").exists()


def test_native_source_and_no_episode_are_refused(v2_folder, cache, tmp_path):
    """There must be something to convert."""
    source = LeRobotSource(v2_folder, cache_dir=cache)
    with pytest.raises(ConfigError, match=r"there is no episode to convert"):
        convert(source, tmp_path / "out", episodes=[])
    convert(source, tmp_path / "out", episodes=[0])
    with pytest.raises(ConfigError, match=r"is a native dataset already"):
        convert(tmp_path / "out", tmp_path / "again")


def test_failing_episode_leaves_nothing_behind(tmp_path, maker, cache):
    """An error in the middle publishes nothing and names the episode."""
    root = maker.make_v2(tmp_path / "d", [5, 6])
    maker.write_video(sorted(root.rglob("*.mp4"))[1], [maker.picture(1, 0)])
    with pytest.raises(
        SourceError, match=r"the video has 1 frames, but the episode has 6 steps.*episode=episode_000001"
    ):
        convert(LeRobotSource(root, cache_dir=cache), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert list(Path(tmp_path / "out").rglob("*.tar*")) == []


@pytest.mark.real_data
@pytest.mark.parametrize(
    "folder",
    ["lerobot_v3/made_by_lerobot", "lerobot_v2/g1_unitree_inspire_av1", "lerobot_v3/reachy2_apple_storage_novideo"],
)
def test_real_datasets_convert_without_a_changed_value(real_data, tmp_path, cache, folder):
    """Real AV1, shared and own files: everything equal to the folder in place."""
    source = open_dataset(real_data / folder, cache_dir=cache, missing="skip")
    convert(source, tmp_path / "out")
    native = open_dataset(tmp_path / "out")
    assert_equal_datasets(source, native, max_frames=9)
    assert native.step_rate_hz == float(Fraction(source.info.fps))
