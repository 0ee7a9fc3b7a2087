"""`assert_continues` passes a training that saves all it needs through real kills, and names what another one forgets."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trajload.checkpoint import assert_continues
from trajload.checkpoint.nursery import Nursery
from trajload.errors import ConfigError, StageFailedError

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]


@pytest.mark.parametrize(("mode", "ranks"), [("sync", 1), ("async", 1), ("sync", 2), ("async", 2)])
def test_whole_training_continues_through_a_chain_of_kills(
    trainees: ModuleType, nursery: Nursery, demo_dataset: Path, mode: str, ranks: int
) -> None:
    """Three kills, one directly after a resumed run has saved again: every value and leaf is that of the run left alone."""
    arguments = {"dataset": str(demo_dataset), "ranks": ranks}
    seen = assert_continues(trainees.make, arguments=arguments, mode=mode, ranks=ranks, seed=ranks, nursery=nursery)
    assert seen.kills == 3 and seen.resumed[0] is None and None not in seen.resumed[1:]
    assert seen.steps_compared >= 24 * ranks and seen.leaves > 60


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_training_continues_from_kills_at_any_time(trainees: ModuleType, nursery: Nursery, mode: str) -> None:
    """Also before anything new was saved."""
    seen = assert_continues(
        trainees.make, steps=60, every=3, kills=8, mode=mode, anywhere=True, seed=4, nursery=nursery
    )
    assert seen.kills == 8 and len(seen.resumed) == 9


@pytest.mark.parametrize(("forget", "named"), [("counts", "updates"), ("own", "noise"), ("schedule", "lr")])
def test_forgotten_state_is_found_and_named(trainees: ModuleType, nursery: Nursery, forget: str, named: str) -> None:
    """A plain counter, a generator, a schedule: the step after the resume differs."""
    with pytest.raises(AssertionError, match=rf"resumed after \d+\)(?s:.*){named}"):
        assert_continues(trainees.make, steps=20, every=4, kills=1, arguments={"forget": forget}, nursery=nursery)


def test_training_that_fails_by_itself_is_no_difference(trainees: ModuleType) -> None:
    """Its own message comes out."""
    with pytest.raises(StageFailedError, match="unexpected keyword argument 'colour'"):
        assert_continues(trainees.make, kills=1, arguments={"colour": 1})


def test_training_that_begins_otherwise_each_time_is_told_to_seed(trainees: ModuleType, nursery: Nursery) -> None:
    """Found at the first step, where nothing has been resumed yet: the checkpoint is not to blame."""
    with pytest.raises(AssertionError, match=r"step 1 \(resumed after None\)(.|\n)*Seed all that it draws from"):
        assert_continues(trainees.make_unseeded, steps=12, every=4, kills=1, nursery=nursery)


BAD: list[tuple[Any, str]] = [
    ({"kills": 0}, "kills=0"),
    ({"steps": 5}, "steps=5"),
    ({"mode": "auto"}, "mode='auto' is invalid"),
    ({"make": lambda: None}, "cannot be found by another process"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_argument_is_refused(trainees: ModuleType, options: dict[str, Any], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError, match=message):
        assert_continues(**{"make": trainees.make, **options})
