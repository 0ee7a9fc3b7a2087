"""Pauses of Python's garbage collector are counted, and blamed for a wait only where they cover it."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajload.bench.collector import CollectorUse, collector_use, collector_words
from trajload.bench.measure import measure
from trajload.bench.observe import Observation
from trajload.loader import Loader
from trajload.pipeline.interpreter import CollectorWatch, InterpreterWatch, Pause
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


def test_watch_gives_each_collection_once() -> None:
    """Together with how often the interpreter was held, as worker processes tell of both."""
    with InterpreterWatch() as watch:
        gc.collect()
        first = watch.take()
        gc.collect()
        gc.collect()
        second = watch.take()
        assert watch.take().pauses == []
    assert (len(first.pauses), len(second.pauses), len((first + second).pauses)) == (1, 2, 3)


def use_of(
    pauses: list[Pause],
    workers: dict[int, list[Pause]] | None = None,
    asked: list[float] | None = None,
    waits: list[float] | None = None,
) -> CollectorUse:
    """What pauses did to a run of two seconds whose longest wait is, by default, the one from 1.0 to 1.12 s."""
    fields: dict[str, Any] = {field.name: None for field in dataclasses.fields(Observation)}
    fields |= {"asked_s": asked or [0.0, 0.5, 1.0, 1.5], "waits_s": waits or [0.01, 0.02, 0.12, 0.01], "began": 10.0}
    fields |= {"pauses": [Pause(10.0 + p.begin, p.seconds) for p in pauses], "elapsed_s": 2.0}
    fields["worker_pauses"] = {
        k: [Pause(10.0 + p.begin, p.seconds) for p in told] for k, told in (workers or {}).items()
    }
    return collector_use(Observation(**fields))


def test_the_process_that_waits_longest_is_told_of() -> None:
    """One whose pauses are the longest wait comes first, then the one that was stopped longest; its number is in the words."""
    use = use_of([Pause(0.2, 0.15)], {0: [Pause(1.02, 0.1)], 1: [Pause(0.1, 0.05)]})
    assert use.worker == 0 and use.is_longest_wait and use.share == pytest.approx(0.05)
    assert use.advice is not None and "of worker process 0 for 100 ms" in use.advice and "in their module" in use.advice
    assert "in worker process 0" in collector_words(use.to_json())
    use = use_of([Pause(0.2, 0.1)], {1: [Pause(0.1, 0.2), Pause(0.6, 0.2)]})
    assert use.worker == 1 and not use.is_longest_wait and use.collections == 2
    assert use.advice is not None and "of worker process 1 for 20% of the time" in use.advice
    assert use_of([Pause(0.2, 0.1)]).advice is None, "a twentieth of the time is not worth a word"


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
    use = use_of(pauses)
    assert use.in_longest_wait_ms == pytest.approx(inside_ms) and use.is_longest_wait is is_cause
    assert use.collections == len(pauses) and use.total_ms == pytest.approx(sum(p.seconds for p in pauses) * 1e3)
    assert ("ms of the longest wait" in (use.advice or "")) is is_cause
    assert ("of the longest wait" in collector_words(use.to_json())) is is_cause


def test_pauses_too_short_to_be_felt_are_no_advice() -> None:
    """Where nothing is waited for, a collection of a millisecond is the longest wait, and no reason to do anything."""
    assert use_of([Pause(0.0, 0.001)], asked=[0.0], waits=[0.001]).advice is None


def collect(window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A transform in which a full collection happens, as it may in any piece of Python."""
    gc.collect()
    return window


@pytest.mark.multiproc
@pytest.mark.parametrize("workers", ["threads", "processes:2"])
def test_measurement_reports_the_collector(demo_dataset: Path, workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run of a loader went through is in its report, wherever its transforms run."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    from test_collector import collect as imported  # by the name that worker processes import it by

    arguments: dict[str, Any] = {"window": Window(num_steps=2), "streams": ["action"], "global_batch_size": 2}
    arguments |= {"transforms": [imported], "workers": workers, "num_workers": 1}
    with Loader(demo_dataset, rank=0, world_size=1, **arguments) as loader:
        told = measure(loader, seconds=0.5).collector
    assert (told["worker"] is None) == (workers == "threads")
    assert told["collections"] > 0 and told["share"] > 0 and 0 < told["longest_ms"] <= told["total_ms"]
    assert told["in_longest_wait_ms"] > 0, "batches are waited for while it collects: every wait holds one"
