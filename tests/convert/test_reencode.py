"""Videos of a native dataset encoded anew: everything else keeps its bytes, and windows decode less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.convert import convert
from trajload.convert.encodings import load_encodings, save_encodings
from trajload.costs.leads import gop_length
from trajload.errors import ConfigError
from trajload.manifest import read_manifest
from trajload.refs import VideoTrack
from trajload.shards.scan import iter_members
from trajload.shards.verify import verify
from trajload.shards.video_encode import VideoEncode
from trajload.sources.native import open_native

WINDOW = tl.Window(num_steps=8)


def members(folder: Path) -> dict[str, bytes]:
    out = {}
    for entry in read_manifest(folder).shards:
        data = (folder / entry.name).read_bytes()
        for member in iter_members(folder / entry.name):
            out[member.name] = data[member.offset : member.offset + member.size]
    return out


def gops(folder: Path, stream: str) -> set[int]:
    dataset = open_native(folder)
    tracks = [dataset.track(e, stream) for e in range(dataset.num_episodes)]
    found = {gop_length(track.index) for track in tracks if isinstance(track, VideoTrack)}
    dataset.close()
    return found


@pytest.fixture(scope="module")
def encoded(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset with its large camera encoded anew, a keyframe every fourth frame."""
    out = tmp_path_factory.mktemp("encoded") / "out"
    report = convert(mixed, out, reencode={"cam_large": VideoEncode(gop=4, crf=18, preset="veryfast")})
    assert (report.num_videos_encoded, report.num_episodes, report.num_shards) == (8, 12, 3)
    return out


def test_only_the_videos_asked_for_change(mixed: Path, encoded: Path) -> None:
    """Other cameras, signals, texts and descriptions keep their bytes and their shards; the result verifies."""
    before, after = members(mixed), members(encoded)
    assert list(before) == list(after)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if name.endswith("cam_large.mp4")}
    assert verify(encoded).ok and not verify(encoded).problems
    assert (gops(encoded, "cam_large"), gops(encoded, "cam_small")) == ({4}, {8})
    old, new = read_manifest(mixed), read_manifest(encoded)
    assert (old.stats, old.sketch, old.name) == (new.stats, new.sketch, new.name)
    assert [e.num_episodes for e in old.shards] == [e.num_episodes for e in new.shards]


def test_pictures_stay_close_and_in_place(mixed: Path, encoded: Path) -> None:
    """Frame by frame: a shift by one frame would be far beyond the codec's error."""
    arguments: dict[str, Any] = {"window": WINDOW, "global_batch_size": 6, "seed": 1, "num_workers": 0}
    old, new = (tl.Loader(folder, **arguments) for folder in (mixed, encoded))
    for step in range(4):
        before, after = old.batch_at(step), new.batch_at(step)
        pictures = [before["cam_large"].numpy().astype(int), after["cam_large"].numpy().astype(int)]
        there = ~before["cam_large_is_missing"].numpy()
        assert np.abs(pictures[0] - pictures[1])[there].mean() < 4
        shifted = np.abs(pictures[0][:, 1:] - pictures[1][:, :-1])[there].mean()
        assert shifted > 1.5 * np.abs(pictures[0] - pictures[1])[there].mean()
        assert np.array_equal(before["action"].numpy(), after["action"].numpy())
    old.close()
    new.close()


def test_provenance_says_what_was_encoded_and_from_what(mixed: Path, encoded: Path) -> None:
    """Digest of the old manifest, and the settings."""
    (said,) = read_manifest(encoded).provenance["reencoded"]
    assert said["from_digest"] == read_manifest(mixed).digest
    assert said["reencode"]["cam_large"]["gop"] == 4 and list(said["reencode"]) == ["cam_large"]


def test_another_container_is_declared(mixed: Path, tmp_path: Path) -> None:
    """FFV1 is kept in Matroska: stream, member and description say so, and pictures stay the same."""
    convert(mixed, tmp_path / "out", reencode={"cam_small": VideoEncode(codec="ffv1")}, episodes=[1, 0])
    assert verify(tmp_path / "out").ok
    dataset, source = open_native(tmp_path / "out"), open_native(mixed)
    assert dataset.spec("cam_small").encoding == "mkv" and dataset.num_episodes == 2
    assert dataset.stats()["action"]["count"] == dataset.num_steps
    info = json.loads(members(tmp_path / "out")["robot0-0000.trajload.json"])
    assert info["streams"]["cam_small"]["encoding"] == "mkv"
    dataset.close()
    old, new = (
        tl.Loader(d, window=WINDOW, global_batch_size=2, order="sequential", num_workers=0) for d in (source, dataset)
    )
    assert np.array_equal(old.batch_at(3)["cam_small"].numpy(), new.batch_at(3)["cam_small"].numpy())
    old.close()
    new.close()


def test_a_run_that_failed_goes_on(mixed: Path, encoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that were finished are not encoded again, and the end is the same dataset."""
    from trajload.convert import reencode as module

    calls = 0
    real = module.encode_video

    def failing(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    monkeypatch.setattr(module, "encode_video", failing)
    how = {"cam_large": VideoEncode(gop=4, crf=18, preset="veryfast")}
    with pytest.raises(KeyboardInterrupt):
        convert(mixed, tmp_path / "out", reencode=how)
    monkeypatch.undo()
    report = convert(mixed, tmp_path / "out", reencode=how)
    assert report.num_videos_encoded == 4, "four of the eight stood in the finished shard"
    assert "were whole and kept" in report.notes[0]["message"]
    assert report.digest == read_manifest(encoded).digest
    again = convert(mixed, tmp_path / "out", reencode=how)
    assert again.num_videos_encoded == 0 and again.digest == report.digest


@pytest.mark.parametrize(
    ("reencode", "message"),
    [
        (None, "nothing to convert, unless videos are to be encoded anew"),
        ({}, "nothing to convert, unless"),
        ({"action": VideoEncode()}, "names 'action': expected one of the video streams"),
        ({"cam_small": 10}, r"reencode\['cam_small'\]=10 is unusable"),
        (10, "reencode=10 is unusable"),
    ],
)
def test_settings_that_do_not_fit_are_refused(mixed: Path, tmp_path: Path, reencode: Any, message: str) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match=message):
        convert(mixed, tmp_path / "out", reencode=reencode)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_another_dataset_is_refused(mixed: Path, encoded: Path) -> None:
    """Other settings mean another dataset."""
    with pytest.raises(ConfigError, match="already holds a dataset"):
        convert(mixed, encoded, reencode={"cam_large": VideoEncode(gop=5)})


def test_streams_of_a_foreign_dataset_are_encoded_one_by_one(v2_folder: Path, cache: Path, tmp_path: Path) -> None:
    """The camera that is named is encoded, others are copied."""
    dataset = tl.open(v2_folder, cache_dir=cache)
    videos = [name for name, spec in dataset.streams.items() if spec.is_video]
    report = convert(dataset, tmp_path / "out", reencode={videos[0]: VideoEncode(gop=3)})
    assert report.num_videos_encoded == dataset.num_episodes
    assert report.num_videos_copied == dataset.num_episodes * (len(videos) - 1)
    assert gops(tmp_path / "out", videos[0]) == {3}
    dataset.close()


def test_settings_come_back_from_their_file(tmp_path: Path) -> None:
    """What tuning writes is what convert reads."""
    settings = {"cam": VideoEncode(codec="av1", gop=8, crf=30)}
    save_encodings(tmp_path / "e.json", settings, {"why": "test"})
    assert load_encodings(tmp_path / "e.json") == settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist"),
        ("{", "holds no encodings"),
        ("[]", "expected 'streams'"),
        ('{"format_version": 1, "streams": {}}', "expected 'streams'"),
        ('{"format_version": 1, "streams": {"cam": {"quality": 3}}}', "expected an object with some of b_frames"),
        ('{"format_version": 1, "streams": {"cam": {"codec": "mpeg1"}}}', "'mpeg1'"),
    ],
)
def test_files_without_settings_are_refused(tmp_path: Path, text: str | None, message: str) -> None:
    """Absent, damaged, empty, or with settings that do not exist."""
    if text is not None:
        (tmp_path / "e.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_encodings(tmp_path / "e.json")
