"""`workers="auto"` measures a pipeline that is slowed on purpose, and chooses; nothing of the measurement is replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.pipeline import auto

_MOST_BATCHES = 20_000
BASE: dict[str, Any] = {"window": tl.Window(num_steps=4), "global_batch_size": 16, "rank": 0, "world_size": 1}


@pytest.mark.slow
@pytest.mark.multiproc
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="threads need two CPUs to wait for each other")
@pytest.mark.parametrize(
    ("transform", "step_s", "choice", "why"),
    [
        (("PlainPython", 40_000), 0.0, "processes:2", "they wait for each other"),
        (("Sleep", 0.005), 0.0, "threads", "they wait for data"),
        (("Sleep", 0.0), 0.02, "threads", "they keep up"),
    ],
    ids=["plain Python", "sleeping", "slow consumer"],
)
def test_auto_chooses_from_what_it_measured(
    transform: tuple[str, Any],
    step_s: float,
    choice: str,
    why: str,
    slow_parts: Any,
    monkeypatch: pytest.MonkeyPatch,
    demo_dataset: Path,
) -> None:
    """Processes where threads take turns at Python; threads where they sleep or keep up. The batches stay the same."""
    monkeypatch.setattr(auto, "_MEASURE_S", 1.0)
    name, amount = transform
    with tl.Loader(
        demo_dataset,
        streams=["action"],
        workers="auto",
        num_workers=2,
        transforms=[getattr(slow_parts, name)(amount)],
        **BASE,
    ) as loader:
        for batch in loader:
            slow_parts.time.sleep(step_s)
            is_chosen = loader.stats()["workers_why"] != "auto: not yet measured"
            run: Any = loader._prefetcher
            if is_chosen and (choice == "threads" or run._threads is None):
                break
            assert batch.train_step < _MOST_BATCHES
        stats = loader.stats()
        assert (stats["workers"], why in stats["workers_why"]) == (choice, True), stats["workers_why"]
        # the batches of whoever was chosen
        following = next(iter(loader))
        assert following.digest() == loader.batch_at(following.train_step).digest()
