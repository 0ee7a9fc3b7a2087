"""The store killed, and refused, at system calls of its own process; strace does both. Counts: docs/how-to/crash-proofs.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from crashlab.bypass import bypassing_calls
from crashlab.scenario import SCRIPT, SHORT_SCRIPT
from crashlab.sweeps import errno_sweep, kill_sweep, power_cut_sweep, profile, spread

pytestmark = [pytest.mark.slow, pytest.mark.multiproc]


@pytest.fixture(scope="module")
def counts(strace: None, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often the short script makes each call."""
    return profile(tmp_path_factory.mktemp("profile"), SHORT_SCRIPT)


def test_killed_at_system_calls_nothing_acknowledged_is_lost(counts: Counter[str], memory_folder: Path) -> None:
    """Points spread over saving, retention, promotion and resuming; each time the next process works on."""
    points = spread(counts, 40)
    tally = kill_sweep(memory_folder, SHORT_SCRIPT, points)
    assert tally.violations == []
    assert tally.total + tally.missed == sum(len(wanted) for _, wanted in points) >= 38
    assert {"mkdir", "write", "fsync", "unlink"} <= set(tally.points)


def test_power_cut_at_system_calls_nothing_acknowledged_is_lost(
    cut_kind: str, counts: Counter[str], memory_folder: Path
) -> None:
    """The same on a file system whose power goes: what was not synced is gone."""
    points = spread(counts, 10)
    tally = power_cut_sweep(memory_folder, cut_kind, SHORT_SCRIPT, points)
    assert tally.violations == []
    assert tally.total + tally.missed == sum(len(wanted) for _, wanted in points) >= 8


@pytest.mark.parametrize("name", ["ENOSPC", "EIO", "EDQUOT", "EROFS"])
def test_call_that_fails_ends_the_save_with_an_error_of_ours(
    name: str, counts: Counter[str], memory_folder: Path
) -> None:
    """Only TrajloadErrors come out, what was there before loads, and the next save works."""
    tally = errno_sweep(memory_folder, SHORT_SCRIPT, spread(counts, 6), name)
    assert tally.violations == []
    assert tally.total >= 5


def test_every_change_goes_through_the_watched_functions(strace: None, memory_folder: Path) -> None:
    """strace sees no call that changes a file beyond those that the recorder of the model has recorded."""
    seen, unrecorded = bypassing_calls(memory_folder, SCRIPT)
    assert unrecorded == []
    assert seen > 300
