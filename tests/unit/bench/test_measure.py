"""The measurement counts what the loader delivers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trajload.bench import measure
from trajload.bench.observe import Live
from trajload.errors import ConfigError
from trajload.loader import Loader
from trajload.spec import Window


def make_loader(dataset: Path, **more: object) -> Loader:
    arguments = {"window": Window(num_steps=4), "global_batch_size": 4, "seed": 1, "streams": ["action"], **more}
    return Loader(dataset, **arguments)  # type: ignore[arg-type]


def test_measure_reports_what_was_delivered(demo_dataset: Path) -> None:
    """Batches, windows and time agree; the loader can go on afterwards, and nothing is left running."""
    told: list[Live] = []
    with make_loader(demo_dataset, num_workers=1) as loader:
        report = measure(loader, seconds=0.6, warmup_batches=2, progress=told.append)
        assert loader.train_step == 2 + report.batches
        assert report.windows_per_s_min <= 4 * report.batches / report.seconds <= report.windows_per_s_max
        assert report.frames_per_s == 0  # an action is no picture
        assert report.machine["processor"] and report.machine["versions"]["torch"] == torch.__version__
        assert told[-1].done_s == told[-1].total_s == 0.6 and 0 < told[-1].wait_share <= 1
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


def test_doubtful_figures_are_called_so() -> None:
    """CPUs that others take, and too few batches: what would be different another time is said."""
    import dataclasses

    from trajload.bench.measure import _notes
    from trajload.bench.observe import Observation, ThreadUse
    from trajload.machine import CpuTime

    thread = ThreadUse(None, "decode-0", "decode", {"decode": 0.9}, CpuTime(0.2, 0.7))
    fields = {field.name: None for field in dataclasses.fields(Observation)}
    seen = Observation(**{**fields, "waits_s": [0.1] * 5, "num_cpus": 2.0, "threads": [thread]})  # type: ignore[arg-type]
    others, few = _notes(seen, (0.2, 0.7))
    assert "Other programs take the CPUs" in others and "Only 5 batches" in few
    assert _notes(dataclasses.replace(seen, waits_s=[0.1] * 50), (1.8, 2.5)) == []
