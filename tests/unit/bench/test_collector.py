"""Pauses of Python's garbage collector are counted, and blamed for a wait only where they cover it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajload.bench.collector import CollectorWatch, Pause, collector_use, collector_words
from trajload.bench.measure import measure
from trajload.loader import Loader
from trajload.spec import Window


def test_full_collections_are_noted_and_settings_left_alone() -> None:
    """Those of younger generations look at few objects; the callback is gone afterwards."""
    before = (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), list(gc.callbacks))
    with CollectorWatch() as watch:
        gc.collect(0)
        gc.collect()
        gc.collect(2)
    gc.collect()
    assert len(watch.pauses) == 2 and all(pause.seconds > 0 for pause in watch.pauses)
    assert watch.pauses[0].begin + watch.pauses[0].seconds <= watch.pauses[1].begin
    assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.callbacks) == before


@pytest.mark.parametrize(
    ("pauses", "inside_ms", "is_cause"),
    [
        ([Pause(1.02, 0.1)], 100.0, True),
        ([Pause(0.95, 0.1)], 50.0, False),  # half of it fell into the wait, which goes on long after it
        ([Pause(1.0, 0.03), Pause(1.05, 0.05)], 80.0, True),
        ([Pause(0.2, 0.1)], 0.0, False),  # the consumer was at work, or had its batch at once
        ([], 0.0, False),
    ],
)
def test_longest_wait_is_blamed_on_pauses_that_cover_half_of_it(
    pauses: list[Pause], inside_ms: float, is_cause: bool
) -> None:
    """The wait is the one from 1.0 to 1.12 s."""
    use = collector_use(pauses, [0.0, 0.5, 1.0, 1.5], [0.01, 0.02, 0.12, 0.01])
    assert use.in_longest_wait_ms == pytest.approx(inside_ms) and use.is_longest_wait is is_cause
    assert use.collections == len(pauses) and use.total_ms == pytest.approx(sum(p.seconds for p in pauses) * 1e3)
    assert (use.advice is None) is not is_cause
    assert ("of the longest wait" in collector_words(use.to_json())) is is_cause


def test_pauses_too_short_to_be_felt_are_no_advice() -> None:
    """Where nothing is waited for, a collection of a millisecond is the longest wait, and no reason to do anything."""
    assert collector_use([Pause(0.0, 0.001)], [0.0], [0.001]).advice is None


def collect(window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A transform in which a full collection happens, as it may in any piece of Python."""
    gc.collect()
    return window


def test_measurement_reports_the_collector(demo_dataset: Path) -> None:
    """What a run of a loader went through is in its report."""
    arguments: dict[str, Any] = {"window": Window(num_steps=2), "streams": ["action"], "global_batch_size": 2}
    with Loader(demo_dataset, num_workers=1, rank=0, world_size=1, transforms=[collect], **arguments) as loader:
        told = measure(loader, seconds=0.5).collector
    assert told["collections"] > 0 and 0 < told["longest_ms"] <= told["total_ms"]
    assert told["in_longest_wait_ms"] > 0, "batches are waited for while it collects: every wait holds one"
