"""Two writers of one store: whoever is told to have won has won, alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from crashlab import races

pytestmark = [pytest.mark.slow, pytest.mark.multiproc, pytest.mark.alone]


def test_of_two_writers_without_locks_one_wins_each_sequence_number(memory_folder: Path) -> None:
    """Both commit the same number at the same moment; the loser is told so."""
    race = races.meet(memory_folder / "root", rounds=60)
    assert race.violations == []
    assert sum(race.wins) == 60


def test_two_writers_with_locks_take_turns(memory_folder: Path) -> None:
    """Every save of both is there under a number of its own."""
    race = races.crowd(memory_folder / "root", rounds=40)
    assert race.violations == []
    assert race.wins == [40, 40]


def test_publishing_by_rename_is_caught(memory_folder: Path) -> None:
    """A rename tells both that they have won."""
    assert races.meet(memory_folder / "root", rounds=500, publishing="renames", is_enough=True).violations
