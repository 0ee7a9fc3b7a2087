"""The demo dataset through the loader: every value delivered is the one that was recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import trajload as tl
from trajload.demo import EpisodeLength, generate, read_barcode
from trajload.demo.scene import Episode, has_side_camera, record_episode
from trajload.errors import ConfigError

SEED, NUM_EPISODES, LENGTH = 0, 5, EpisodeLength(60, 180)


@pytest.fixture(scope="module")
def demo_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "dataset"
    return generate(out, num_episodes=NUM_EPISODES, seed=SEED, length=LENGTH)


@pytest.fixture(scope="module")
def truth() -> list[Episode]:
    return [record_episode(SEED, e, size=64, length=LENGTH) for e in range(NUM_EPISODES)]


@pytest.fixture
def batches(demo_path: Path) -> Iterator[list[tl.Batch]]:
    """All windows of the dataset, several threads at work; those at an episode's end repeat its last step."""
    loader = tl.Loader(
        demo_path,
        window=tl.Window(num_steps=16, stride=6, pad="edge"),
        global_batch_size=8,
        order="shuffled",
        seed=11,
        num_workers=2,
        num_epochs=1,
    )
    with loader:
        yield list(loader)


def real_rows(batch: tl.Batch) -> Iterator[tuple[int, tl.WindowRef]]:
    """Rows of a batch that do not merely fill it up."""
    for b, ref in enumerate(batch.refs):
        if "row_is_pad" not in batch or not batch["row_is_pad"][b]:
            yield b, ref


def folder_digest(path: Path) -> str:
    hasher = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        hasher.update(str(file.relative_to(path)).encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()


def test_generating_twice_gives_the_same_bytes(demo_path: Path, tmp_path: Path) -> None:
    """Same arguments: every file of the dataset is the same, and so is its digest."""
    again = generate(tmp_path / "again", num_episodes=NUM_EPISODES, seed=SEED, length=LENGTH)
    assert folder_digest(again) == folder_digest(demo_path)
    other = generate(tmp_path / "other", num_episodes=1, seed=SEED + 1, length=LENGTH)
    assert tl.open(other).digest != tl.open(again).digest == tl.open(demo_path).digest


def test_every_delivered_frame_is_the_promised_one(batches: list[tl.Batch], truth: list[Episode]) -> None:
    """The barcode of each frame of both cameras names the episode and step that the batch says it is."""
    seen = {"cam_front": set(), "cam_side": set()}
    for batch in batches:
        for b, ref in real_rows(batch):
            for camera, frames_seen in seen.items():
                if batch[f"{camera}_is_missing"][b]:
                    continue
                last = truth[ref.episode_index].num_steps - 1
                for t in range(16):
                    step = min(ref.start + t, last)
                    assert read_barcode(batch[camera][b, t]) == (ref.episode_index, step), (camera, ref)
                    assert batch["step_index"][b, t] == ref.start + t
                    assert batch[f"{camera}_is_pad"][b, t] == (ref.start + t > last)
                    frames_seen.add((ref.episode_index, step))
    covered = {(e, step) for e, episode in enumerate(truth) for step in range(episode.num_steps)}
    assert seen["cam_front"] == covered
    assert seen["cam_side"] == {(e, s) for e, s in covered if has_side_camera(e)}


def test_side_camera_that_was_not_recorded_is_missing(batches: list[tl.Batch]) -> None:
    """Every fourth episode: `cam_side_is_missing`, zeros, and no valid step; elsewhere none is missing."""
    seen = set()
    for batch in batches:
        for b, ref in real_rows(batch):
            is_missing = bool(batch["cam_side_is_missing"][b])
            assert is_missing == (ref.episode_index % 4 == 3)
            assert batch.valid_mask("cam_side")[b].any() != is_missing
            assert bool((batch["cam_side"][b] == 0).all()) == is_missing
            assert not batch["cam_front_is_missing"][b]
            seen.add(is_missing)
    assert seen == {True, False}


@pytest.mark.parametrize("stream", ["proprioception", "depth"])
def test_clocked_streams_give_the_row_nearest_in_time(
    batches: list[tl.Batch], truth: list[Episode], stream: str
) -> None:
    """Recomputed by brute force: no row of the stream is nearer to a step's time than the one delivered."""
    for batch in batches:
        for b, ref in real_rows(batch):
            episode = truth[ref.episode_index]
            times_N = episode.timestamps_ns[stream]
            num_real = min(16, episode.num_steps - ref.start)
            for t in range(num_real):
                time_ns = round((ref.start + t) * 1_000_000_000 / 30)
                assert batch["timestamp_ns"][b, t] == time_ns
                distances_N = [abs(int(time) - time_ns) for time in times_N]
                nearest = distances_N.index(min(distances_N))
                expected = episode.arrays[stream][nearest]
                got = batch[stream][b, t].numpy()
                if stream == "depth":
                    expected = expected.transpose(2, 0, 1)
                assert got.dtype == expected.dtype
                assert (got == expected).all(), (ref, t)
            assert batch[f"{stream}_is_pad"][b].tolist() == [False] * num_real + [True] * (16 - num_real)


def test_stepwise_streams_flags_and_text_are_the_recorded_ones(batches: list[tl.Batch], truth: list[Episode]) -> None:
    """Action, reward and puck come back bit for bit; instructions, episode ends and terminal steps as recorded."""
    terminal_seen = set()
    for batch in batches:
        for b, ref in real_rows(batch):
            episode = truth[ref.episode_index]
            steps = slice(ref.start, ref.start + 16)
            for stream in ("action", "reward", "puck"):
                expected = episode.arrays[stream][steps]
                assert (batch[stream][b].numpy()[: len(expected)] == expected).all(), (stream, ref)
            assert batch["language"][b] == episode.arrays["language"]
            assert batch["episode_index"][b] == ref.episode_index
            is_end_T = np.arange(ref.start, ref.start + 16) == episode.num_steps - 1
            assert (batch["is_last"][b].numpy() == is_end_T).all()
            assert (batch["is_terminal"][b].numpy() == (is_end_T & episode.terminated)).all()
            if batch["is_terminal"][b].any():
                terminal_seen.add(ref.episode_index)
    assert terminal_seen == {e for e, episode in enumerate(truth) if episode.terminated}
    assert 0 < len(terminal_seen) < NUM_EPISODES


def test_metadata_and_provenance_say_how_the_data_came_about(demo_path: Path, truth: list[Episode]) -> None:
    """An episode carries its seed and colours, the dataset its generator's arguments."""
    dataset = tl.open(demo_path)
    assert [info.num_steps for info in dataset.episodes()] == [episode.num_steps for episode in truth]
    assert [info.terminated for info in dataset.episodes()] == [episode.terminated for episode in truth]
    assert dict(dataset.episode(2).metadata)["goal_colour"] == truth[2].metadata["goal_colour"]
    assert dict(dataset.episode(2).metadata)["seed"] == SEED
    assert dataset.provenance()["arguments"]["num_episodes"] == NUM_EPISODES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_episodes": 0}, "num_episodes=0"),
        ({"num_episodes": 5000}, "num_episodes=5000"),
        ({"size": 50}, "size=50"),
        ({"size": 32}, "size=32"),
        ({"seed": 1.5}, "1.5"),
        ({"length": EpisodeLength(90, 60)}, "min_steps=90"),
    ],
)
def test_unusable_arguments_are_refused_before_anything_is_written(tmp_path: Path, arguments, message) -> None:
    """The message names the argument, and the folder is not made."""
    with pytest.raises(ConfigError, match=message):
        generate(tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_progress_counts_every_episode(tmp_path: Path) -> None:
    """The callback is told after each episode."""
    calls = []
    generate(
        tmp_path / "out",
        num_episodes=2,
        length=EpisodeLength(4, 6),
        size=48,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(1, 2), (2, 2)]
