"""An object store whose client dies, fails or loses a reply at one request after the other, and two that race."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("obstore")

from crashlab import objects
from crashlab.scenario import SHORT_SCRIPT

from trajload.checkpoint.object_medium import ObjectMedium

STRIDE = 16


@pytest.mark.parametrize("how", objects.HOWS)
def test_request_that_goes_wrong_loses_nothing_acknowledged(how: str) -> None:
    """Each test takes each sixteenth request, each other ones; scripts/crash-tests takes all."""
    first = 1 + 3 * objects.HOWS.index(how)
    points = range(first, objects.num_requests(SHORT_SCRIPT) + 1, STRIDE)
    tally = objects.request_sweep(SHORT_SCRIPT, how, points)
    assert tally.violations == []
    assert tally.total == len(points) > 12


@pytest.mark.alone
def test_of_two_clients_one_wins_each_name() -> None:
    """Both put the same new object at the same moment; each is told the truth."""
    memory = objects.memory_store()
    wins, violations = objects.race_for_names([memory, memory], 100)
    assert violations == []
    assert sum(wins) == 100


@pytest.mark.alone
def test_writers_that_take_over_from_each_other_are_told_the_truth() -> None:
    """Whoever is told to have committed has, and whoever is told of a conflict has not."""
    memory = objects.memory_store()
    outcomes, violations = objects.race_of_writers([memory, memory], 30)
    assert violations == []
    assert outcomes["won"] + outcomes["conflict"] == 60


class Overwriting(ObjectMedium):
    """Looks whether the name is free, and then puts: two may look before either puts."""

    def _put_new(self, path: str, data: bytes) -> None:
        if path.rpartition("/")[2] in self.names(path.rpartition("/")[0]):
            raise FileExistsError(path)
        time.sleep(0.002)  # the other one's turn to look, also where a single processor is left to both
        self._overwrite(path, data)


@pytest.mark.alone
def test_put_without_a_condition_is_caught() -> None:
    """Two are told that they have won, or one whose object is gone."""
    memory = objects.memory_store()
    _, violations = objects.race_for_names([memory, memory], 300, Overwriting)
    assert violations


class Believing(ObjectMedium):
    """Takes the first answer for the truth: what exists already is another's."""

    def publish(self, path: str, data: bytes, nonce: str) -> bool:
        try:
            self._put_new(path, data)
            return True
        except FileExistsError:
            return False


def test_answer_taken_for_the_truth_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a client repeats a put whose reply was lost, the second answer says that the object exists."""
    monkeypatch.setattr(ObjectMedium, "publish", Believing.publish)
    num_puts = objects.num_requests(SHORT_SCRIPT[:2], ("put",))
    found = []
    for at in range(1, num_puts + 1):
        tally = objects.request_sweep(SHORT_SCRIPT[:2], "sent twice", [at], ("put",))
        found += tally.violations
    assert found
