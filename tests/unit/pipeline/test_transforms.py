"""Transforms inside the loader: missing streams, padding, shapes, failures, draws."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import trajload as tl
from trajload.errors import StageFailedError

ALONE: dict[str, Any] = {"rank": 0, "world_size": 1, "seed": 2}
STREAMS = [
    tl.StreamSpec(name="left", modality=tl.Modality.RGB, encoding="png", shape=(12, 16, 3), dtype="uint8"),
    tl.StreamSpec(name="right", modality=tl.Modality.RGB, encoding="png", shape=(12, 16, 3), dtype="uint8"),
    tl.StreamSpec(name="action", modality=tl.Modality.ACTION, encoding="npy", shape=(2,), dtype="float32"),
    tl.StreamSpec(name="task", modality=tl.Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"),
]

Window = dict[str, Any]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tl.Dataset]:
    """Two cameras with the same frames, each step's another; the second episode lacks the right one and the task."""
    folder = tmp_path_factory.mktemp("augment") / "two-cameras"
    frames = np.arange(1, 9, dtype=np.uint8)[:, None, None, None] * 9 + np.arange(16, dtype=np.uint8)[:, None]
    frames = np.broadcast_to(frames, (8, 12, 16, 3)).copy()
    frames[..., 1] += np.arange(12, dtype=np.uint8)[:, None]
    action = np.ones((8, 2), np.float32)
    with tl.Writer(folder, streams=STREAMS, step_rate_hz=10) as writer:
        writer.add_episode({"left": frames, "right": frames, "action": action, "task": "lift"}, key="both")
        writer.add_episode({"left": frames, "action": action}, key="one")
    opened = tl.open(folder)
    yield opened
    opened.close()


def loader_of(dataset: tl.Dataset, *transforms: Any, pad: Any = "none", **more: Any) -> tl.Loader:
    arguments = {"window": tl.Window(num_steps=4, pad=pad), "global_batch_size": 4, "num_workers": 0, **ALONE, **more}
    return tl.Loader(dataset, transforms=transforms, **arguments)


def brighten(window: Window, generator: np.random.Generator) -> Window:
    """Writes everywhere, also where there are no data."""
    for name in ("left", "right"):
        window[name] += 1
    window["action"] += 5
    return window


def leave(window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    sys.exit(3)


def explode(window: Window, generator: np.random.Generator) -> Window:
    raise ValueError("no window is good enough")


def shout(window: Window, generator: np.random.Generator) -> Window:
    return {**window, "task": window["task"].upper()}


def test_one_draw_is_shared_by_frames_and_cameras(dataset: tl.Dataset) -> None:
    """Cameras that see the same show the same afterwards; every frame differs from the plain one in the same way."""
    chain = [tl.RandomCrop((6, 6)), tl.RandomFlip(), tl.ColorJitter(0.3, hue=0.2), tl.GaussianBlur(), tl.FrameDrop(0.3)]
    with loader_of(dataset, *chain, order="sequential") as loader:
        batch = loader.batch_at(0)
        draws = loader.draws_at(0)
    assert batch["left"].shape == (4, 4, 3, 6, 6)
    assert torch.equal(batch["left"], batch["right"])
    crops = [row[0]["draws"]["left"] for row in draws]
    assert all(len(crop["top"]) == 1 for crop in crops)
    assert len({(c["top"].item(), c["left"].item()) for c in crops}) > 1, "windows draw apart"
    with (
        loader_of(dataset, tl.RandomCrop((6, 6)), order="sequential") as loader,
        loader_of(dataset, order="sequential") as plain,
    ):
        got, full = loader.batch_at(0)["left"], plain.batch_at(0)["left"]
        for b, row in enumerate(loader.draws_at(0)):
            top, left = (row[0]["draws"]["left"][k].item() for k in ("top", "left"))
            assert torch.equal(got[b], full[b, :, :, top : top + 6, left : left + 6])


def test_per_stream_draws_apart_for_cameras(dataset: tl.Dataset) -> None:
    """Asked for, each camera has a crop of its own."""
    with loader_of(dataset, tl.RandomCrop((6, 6), per_stream=True), order="sequential") as loader:
        batch = loader.batch_at(0)
    assert not torch.equal(batch["left"], batch["right"])


def test_missing_camera_does_not_change_what_the_other_draws(dataset: tl.Dataset) -> None:
    """Draws are counted by the loader's streams, not by the episode's."""
    with loader_of(dataset, tl.ColorJitter(0.5, per_stream=True), order="sequential", global_batch_size=10) as both:
        batch = both.batch_at(0)
    with loader_of(dataset, tl.RandomCrop((6, 6)), order="sequential", global_batch_size=10) as loader:
        got = loader.batch_at(0)
    missing = batch["right_is_missing"]
    assert missing.tolist() == [False] * 5 + [True] * 5
    assert (batch["right"][missing] == 0).all()
    assert (got["right"][missing] == 0).all() and (got["left"][missing] > 0).all()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("pad", ["edge", "zero"])
def test_steps_without_data_stay_zeros(dataset: tl.Dataset, pad: str, num_workers: int) -> None:
    """Whatever a transform writes there: zero padding and missing streams are zeros, repeated edges are transformed."""
    with (
        loader_of(
            dataset, brighten, pad=pad, order="sequential", global_batch_size=16, num_workers=num_workers
        ) as loader,
        loader_of(dataset, pad=pad, order="sequential", global_batch_size=16) as plain,
    ):
        got, raw = next(iter(loader)), plain.batch_at(0)
    for name, added in (("left", 1), ("right", 1), ("action", 5)):
        is_zero = raw[f"{name}_is_missing"][:, None].expand(16, 4)
        if pad == "zero":
            is_zero = is_zero | raw[f"{name}_is_pad"]
        assert is_zero.any() or name != "right"
        assert (got[name][is_zero] == 0).all()
        assert torch.equal(got[name][~is_zero], raw[name][~is_zero] + added)
        assert torch.equal(got[f"{name}_is_pad"], raw[f"{name}_is_pad"])


def test_masked_frames_reach_the_batch_s_mask(dataset: tl.Dataset) -> None:
    """What FrameDrop masks is not valid in the batch, in both cameras at the same steps."""
    with loader_of(dataset, tl.FrameDrop(0.5, mode="mask"), order="sequential") as loader:
        batch = loader.batch_at(0)
        draws = loader.draws_at(0)
    lost = torch.from_numpy(np.stack([row[0]["draws"]["left"]["lost"] for row in draws]))
    assert 0 < lost.sum() < 16
    assert torch.equal(batch.valid_mask("left"), ~lost) and torch.equal(batch.valid_mask("right"), ~lost)
    assert torch.equal((batch["left"] == 0).all(dim=(2, 3, 4)), lost)


def test_text_may_be_changed_and_stays_missing_where_it_is(dataset: tl.Dataset) -> None:
    """Language is part of the window."""
    with loader_of(dataset, shout, order="sequential", global_batch_size=10) as loader:
        batch = loader.batch_at(0)
    assert batch["task"] == ["LIFT"] * 5 + [""] * 5
    assert batch["task_is_missing"].tolist() == [False] * 5 + [True] * 5


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "substitute"])
def test_failing_transform_stops_the_run_and_says_where(dataset: tl.Dataset, num_workers: int, on_error: Any) -> None:
    """Name, window, train_step and cause; no window is blamed for the code's fault, whatever `on_error` says."""
    with loader_of(dataset, brighten, explode, num_workers=num_workers, on_error=on_error) as loader:
        with pytest.raises(
            StageFailedError, match=r"transforms\[1\] \(.*:explode\) .* ValueError: no window is good"
        ) as caught:
            next(iter(loader))
        where = caught.value.at
        assert where.train_step == 0 and where.window_id is not None and where.episode in ("both", "one")
        assert isinstance(caught.value.__cause__, ValueError)
        assert loader.stats()["quarantined"] == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_transform_that_exits_is_an_error_with_its_location(dataset: tl.Dataset, num_workers: int) -> None:
    """`sys.exit` neither ends the program from within a batch nor a thread without a word about where."""
    with loader_of(dataset, leave, num_workers=num_workers) as loader:
        with pytest.raises(StageFailedError, match=r":leave\) failed on a window: SystemExit: 3") as caught:
            next(iter(loader))
        assert caught.value.at.train_step == 0
        assert caught.value.at.window_id is not None


def test_time_of_transforms_is_counted_apart(dataset: tl.Dataset) -> None:
    """`stats` tells what augmentation costs, and the batch's bytes are those after it."""
    with loader_of(dataset, tl.RandomCrop((6, 6))) as loader:
        loader.batch_at(0)
        stats = loader.stats()
    assert stats["seconds"]["augment"] > 0
    assert stats["batch_bytes"] == 4 * 4 * (2 * 3 * 6 * 6 + 2 * 4)


def test_loader_without_transforms_tells_no_draws_and_keeps_its_configuration(dataset: tl.Dataset) -> None:
    """States from before there were transforms still load."""
    with loader_of(dataset) as loader:
        assert loader.draws_at(0) == [[], [], [], []]
        assert "transforms" not in loader.state_dict()["config"]
