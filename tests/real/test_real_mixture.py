"""Two real LeRobot datasets of different robots in one batch: a camera under one key, sizes and signals that differ."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trajload as tl
from trajload.errors import ConfigError

pytestmark = pytest.mark.real_data

CAMERA = "observation.images.ego_view"
SIZE = tl.Image(size=(60, 80))


@pytest.fixture(scope="module")
def robots(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tl.Dataset]:
    cache = tmp_path_factory.mktemp("cache")
    folders = {"gr1": "lerobot_v3/made_by_lerobot", "g1": "lerobot_v2/g1_unitree_inspire_av1"}
    return {
        name: tl.open(real_data / path, cache_dir=cache, missing="skip", name=name) for name, path in folders.items()
    }


def mixture_of(robots: dict[str, tl.Dataset], **more: Any) -> tl.Mixture:
    g1 = tl.Source(
        robots["g1"], weight=0.25, rename={"observation.images.cam_high": CAMERA, "action": "action.g1"},
        window=tl.Window(num_steps=3, dilation=3, stride=7), **more,
    )  # fmt: skip
    return tl.Mixture({"gr1": (robots["gr1"], 0.75), "g1": g1}, by="windows")


def loader_of(mixture: tl.Mixture, **more: Any) -> tl.Loader:
    arguments: dict[str, Any] = {
        "window": tl.Window(num_steps=3, dilation=2),
        "streams": {CAMERA: SIZE, "action": None, "action.g1": None, "task": None},
        "global_batch_size": 8,
        "order": "interleaved",
        "seed": 5,
        **{"num_workers": 0, "rank": 0, "world_size": 1},
    }
    return tl.Loader(mixture, **{**arguments, **more})


def test_rows_of_two_robots_are_those_of_each_alone(robots: dict[str, tl.Dataset]) -> None:
    """Pictures of 256 x 256 and 480 x 640 come in one size; each robot has its own action, masked for the other."""
    mixture = mixture_of(robots)
    alone = {
        name: tl.Loader(
            robots[name], window=window, order="sequential", streams={camera: SIZE, "action": None, "task": None},
            global_batch_size=1, num_workers=0, rank=0, world_size=1,
        )
        for name, window, camera in (
            ("gr1", tl.Window(num_steps=3, dilation=2), CAMERA),
            ("g1", tl.Window(num_steps=3, dilation=3, stride=7), "observation.images.cam_high"),
        )
    }  # fmt: skip
    with loader_of(mixture, num_workers=2) as loader:
        for batch in itertools.islice(loader, 2):
            assert batch["source"] == ["gr1"] * 6 + ["g1"] * 2
            for b, name in enumerate(batch["source"]):
                expected = alone[name].batch_at(int(batch["window_id"][b]))
                camera, action = (CAMERA, "action") if name == "gr1" else ("observation.images.cam_high", "action.g1")
                assert torch.equal(batch[CAMERA][b], expected[camera][0])
                assert torch.equal(batch[action][b], expected["action"][0])
                assert torch.equal(batch["timestamp_ns"][b], expected["timestamp_ns"][0])
                assert batch["task"][b] == expected["task"][0] != ""
            assert batch["action"].shape == (8, 3, 44) and batch["action.g1"].shape == (8, 3, 26)
            assert batch["action_is_missing"].tolist() == [False] * 6 + [True] * 2
            assert batch["action.g1_is_missing"].tolist() == [True] * 6 + [False] * 2
            assert batch.valid_mask("action").sum() == 18
    for each in alone.values():
        each.close()


def test_two_robots_resume_byte_for_byte_on_two_ranks(robots: dict[str, tl.Dataset]) -> None:
    """A state of one rank continues on two, with each source's own normalisation."""
    norm = tl.Normalizer.from_dataset(robots["g1"], {"action": "mean_std"})
    with loader_of(mixture_of(robots, transforms=[norm])) as loader:
        expected = loader.batch_at(1)
        next(iter(loader))
        state = json.dumps(loader.state_dict())
    assert len(state) < 4096
    parts = []
    for rank in range(2):
        with loader_of(mixture_of(robots, transforms=[norm]), rank=rank, world_size=2, num_workers=1) as loader:
            loader.load_state_dict(json.loads(state))
            parts.append(next(iter(loader)))
    for key in (CAMERA, "action", "action.g1", "window_id"):
        assert torch.equal(torch.cat([part[key] for part in parts]), expected[key])


def test_actions_of_different_robots_under_one_key_are_refused(robots: dict[str, tl.Dataset]) -> None:
    """44 numbers and 26 are no batch: both sources and shapes are named."""
    mixture = tl.Mixture({name: (dataset, 0.5) for name, dataset in robots.items()}, by="windows")
    with pytest.raises(
        ConfigError, match=r"'gr1' gives float32 signals \(44,\) at 3 places, source 'g1' float32 signals \(26,\)"
    ):
        loader_of(mixture, streams=["action"])
