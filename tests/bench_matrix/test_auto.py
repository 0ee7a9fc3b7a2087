"""`workers="auto"` measures a pipeline that is slowed on purpose, and chooses; nothing of the measurement is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.machine import num_cpus
from trajload.pipeline import auto

_MOST_BATCHES = 20_000
BASE: dict[str, Any] = {"window": tl.Window(num_steps=4), "global_batch_size": 16, "rank": 0, "world_size": 1}


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("transform", "step_s", "choice", "why"),
    [
        pytest.param(
            *(("PlainPython", 40_000), 0.0, "processes:2", "they wait for each other"),
            marks=pytest.mark.skipif(num_cpus() < 2, reason="threads need two CPUs to wait for each other"),
        ),
        (("HoldInterpreter", 0.005), 0.0, "processes:2", "the interpreter was held"),
        (("Sleep", 0.005), 0.0, "threads", ""),  # for data, or for a CPU where other programs keep them busy
        (("Sleep", 0.0), 0.02, "threads", "they keep up"),
    ],
    ids=["plain Python", "sleeping and holding", "sleeping", "slow consumer"],
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
    """Processes where threads take turns at Python, or one sleeps and lets no other run; threads where they sleep or keep up.

    The batches stay the same, and `stats` has what was measured.
    """
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
            if is_chosen and (loader.stats()["workers"] == "threads" or run._threads is None):
                break
            assert batch.train_step < _MOST_BATCHES
        stats = loader.stats()
        assert (stats["workers"], why in stats["workers_why"]) == (choice, True), stats["workers_why"]
        assert (stats["workers_measured"]["waited_share"] < 0.1) == (why == "they keep up")
        # the batches of whoever was chosen
        following = next(iter(loader))
        assert following.digest() == loader.batch_at(following.train_step).digest()
