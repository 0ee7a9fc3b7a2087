"""The measurement counts what the loader delivers, and blames the right stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trajload.bench import measure
from trajload.bench.measure import name_bottleneck
from trajload.errors import ConfigError
from trajload.loader import Loader
from trajload.spec import Window


def make_loader(dataset: Path, **more: object) -> Loader:
    arguments = {"window": Window(num_steps=4), "global_batch_size": 4, "seed": 1, "streams": ["action"], **more}
    return Loader(dataset, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("busy", "wait_share", "stage", "advice"),
    [
        ({"plan": 0.1, "read": 0.2, "decode": 0.9, "collate": 0.0}, 0.8, "decode", "give it more cores"),
        ({"plan": 0.1, "read": 0.9, "decode": 0.5, "collate": 0.0}, 0.8, "read", "Storage or network is slow"),
        ({"plan": 0.9, "read": 0.2, "decode": 0.5, "collate": 0.0}, 0.8, "plan", "longer windows"),
        ({"plan": 0.1, "read": 0.2, "decode": 0.5, "collate": 0.7}, 0.8, "collate", "fewer streams"),
        ({"plan": 0.1, "read": 0.2, "decode": 0.9, "collate": 0.0}, 0.01, "consumer", "would change nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bottleneck_is_the_busiest_stage_unless_the_consumer_is_fed(
    busy: dict[str, float], wait_share: float, stage: str, advice: str
) -> None:
    """Stage and advice belong together."""
    named, said = name_bottleneck(busy, wait_share, num_workers=2)
    assert named == stage and advice in said


def test_measure_reports_what_was_delivered(demo_dataset: Path) -> None:
    """Batches, windows and time agree; the loader can go on afterwards, and nothing is left running."""
    ticks: list[tuple[int, int]] = []
    with make_loader(demo_dataset, num_workers=1) as loader:
        report = measure(
            loader, seconds=0.6, warmup_batches=2, progress=lambda done, total: ticks.append((done, total))
        )
        assert loader.train_step == 2 + report.batches
        assert report.windows_per_s_min <= 4 * report.batches / report.seconds <= report.windows_per_s_max
        assert report.frames_per_s == 0  # an action is no picture
        assert ticks[-1] == (6, 6)
        assert next(iter(loader)).train_step == 2 + report.batches


def test_uniform_mixing_is_the_expectation_of_the_draw(demo_dataset: Path) -> None:
    """The reference for mixing is computed from the windows of each episode."""
    with make_loader(demo_dataset, num_workers=0) as loader:
        report = measure(loader, seconds=0.2)
        share = np.asarray(loader.dataset.num_steps_E) - 3
        share = share / share.sum()
        assert report.distinct_episodes_uniform == pytest.approx(sum(1 - (1 - p) ** 4 for p in share))
        assert report.distinct_episodes_per_batch == pytest.approx(report.distinct_episodes_uniform, rel=0.25)


def test_run_that_ends_too_early_is_refused(demo_dataset: Path) -> None:
    """A finite run is over before the time is: no numbers from half a measurement."""
    with (
        make_loader(demo_dataset, num_workers=0, num_epochs=1) as loader,
        pytest.raises(ConfigError, match="the run ended before the measurement"),
    ):
        measure(loader, seconds=60)


@pytest.mark.parametrize("arguments", [{"seconds": 0}, {"warmup_batches": 0}, {"step_s": -1}], ids=str)
def test_bad_arguments_are_refused(demo_dataset: Path, arguments: dict[str, float]) -> None:
    """Before anything is read."""
    with make_loader(demo_dataset, num_workers=0) as loader, pytest.raises(ConfigError, match="expected > 0, >= 1"):
        measure(loader, **arguments)  # type: ignore[arg-type]
