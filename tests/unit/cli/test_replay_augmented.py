"""`trajload replay` with augmentation: by options, by a file, by a saved state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import trajload as tl

# Rich, which draws tables, takes ids of styles from the global generator of `random`.
pytestmark = pytest.mark.global_rng

Run = Callable[..., Any]

CROP = {"name": "RandomCrop", "size": [40, 48]}
NOISE = {"name": "ActionNoise", "std": 0.5}


def same_loader(dataset: Path) -> tl.Loader:
    return tl.Loader(
        dataset,
        window=tl.Window(num_steps=4),
        global_batch_size=3,
        seed=11,
        num_workers=0,
        rank=0,
        world_size=1,
        streams=["cam_front", "action"],
        transforms=[
            tl.RandomCrop((40, 48)),
            tl.ActionNoise(0.5),
            tl.Normalizer.from_dataset(tl.open(dataset), METHODS),
        ],
    )


METHODS: Any = {"action": "min_max"}
CONFIG = {
    "window": {"num_steps": 4},
    "global_batch_size": 3,
    "seed": 11,
    "streams": ["cam_front", "action"],
    "transforms": [CROP, NOISE, {"name": "Normalizer", "methods": METHODS}],
}


def check(got: Any, dataset: Path, train_step: int) -> None:
    """Same bytes as the loader's, and the draws that made them."""
    with same_loader(dataset) as loader:
        batch, draws = loader.batch_at(train_step), loader.draws_at(train_step)
    assert got["digest"] == batch.digest()
    assert got["keys"]["cam_front"] == "uint8 (3, 4, 3, 40, 48)"
    for b, row in enumerate(got["rows"]):
        assert [entry["transform"] for entry in row["augment"]] == ["RandomCrop", "ActionNoise", "Normalizer"]
        counters = [row["epoch"], row["window_id"], 0]
        assert row["augment"][0]["key"] == {"seed": 11, "purpose": "augment", "counters": counters}
        assert row["augment"][0]["draws"]["cam_front"]["top"] == draws[b][0]["draws"]["cam_front"]["top"].tolist()
        assert row["augment"][1]["draws"]["action"]["noise"] == draws[b][1]["draws"]["action"]["noise"].tolist()
        assert row["augment"][2]["draws"] is None


def test_replay_by_options_shows_the_augmented_windows(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """JSON lists the draws; the sheet shows the cropped frames."""
    out = tmp_path / "step.png"
    options = ["--num-steps", 4, "--batch-size", 3, "--seed", 11, "-s", "cam_front", "-s", "action"]
    for transform in CONFIG["transforms"]:  # type: ignore[attr-defined]
        options += ["--transform", json.dumps(transform)]
    check(trajload("replay", demo_dataset, "--train-step", 17, *options, "-o", out, "--json").json, demo_dataset, 17)
    augmented = Image.open(out).tobytes()
    trajload("replay", demo_dataset, "--train-step", 17, *options[:10], "-o", out)
    assert Image.open(out).tobytes() != augmented
    done = trajload("replay", demo_dataset, "--train-step", 17, *options, "--no-sheet")
    assert "augmented by RandomCrop, ActionNoise, Normalizer" in done.out


def test_replay_by_configuration_file_augments(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """Transforms stand in the file by name and arguments."""
    (tmp_path / "c.json").write_text(json.dumps(CONFIG))
    options = ["--config", tmp_path / "c.json", "--no-sheet", "--json"]
    check(trajload("replay", demo_dataset, "--train-step", 5, *options).json, demo_dataset, 5)


def test_replay_from_a_state_knows_the_augmentation(trajload: Run, demo_dataset: Path, tmp_path: Path) -> None:
    """What the run saved is enough to see what it trained on."""
    with same_loader(demo_dataset) as loader:
        loader.seek(7)
        (tmp_path / "s.json").write_text(json.dumps(loader.state_dict()))
    options = ["--state", tmp_path / "s.json", "--no-sheet", "--json"]
    check(trajload("replay", demo_dataset, *options).json, demo_dataset, 7)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("{", "is not JSON"),
        ("Crop", "is named 'Crop': expected one of 'ActionNoise'"),
        ('{"name": "RandomCrop", "size": [400, 4]}', "size=(400, 4)) is larger than the pictures"),
        ('{"name": "nowhere:f"}', "cannot be imported"),
    ],
)
def test_replay_refuses_a_bad_transform(trajload: Run, demo_dataset: Path, transform: str, message: str) -> None:
    """One line that names the mistake, exit code 2."""
    done = trajload("replay", demo_dataset, "--train-step", 0, "--transform", transform, "--no-sheet")
    assert done.code == 2 and message in done.err
