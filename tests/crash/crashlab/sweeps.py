"""Kill, cut or refuse at one system call after the other, and judge what is left. Used by tests and by scripts/crash-tests."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crashlab import judge
from crashlab.cuts import PowerCutDisk
from crashlab.scenario import exports, far
from crashlab.tracer import CHANGING, Tracer, calls_of, counted

__all__ = ["Tally", "errno_sweep", "kill_sweep", "power_cut_sweep", "profile", "remove_stores", "spread"]


@dataclass
class Tally:
    """What a sweep has found."""

    points: Counter[str] = field(default_factory=Counter)
    """Points at which the process was stopped, or given an error, by call."""
    missed: int = 0
    """Points that the process did not reach: it made fewer calls this time."""
    violations: list[str] = field(default_factory=list)
    slowest_open_s: float = 0.0

    @property
    def total(self) -> int:
        """How many points there were."""
        return sum(self.points.values())


def profile(folder: Path, actions: Sequence[Any]) -> Counter[str]:
    """Return how often each call is made when nothing goes wrong."""
    log = folder / "profile.strace"
    with Tracer(log=log) as tracer:
        outcome = tracer.run(folder / "profile", actions)
    assert outcome.status == 0, outcome
    remove_stores(folder / "profile")
    return counted(calls_of(log, outcome.pid))


def spread(counts: Counter[str], most: int, calls: Sequence[str] = CHANGING) -> list[tuple[str, list[int]]]:
    """Return (call, which of its occurrences) of at most about `most` points, spread evenly over all; all if there are fewer."""
    total = sum(counts[call] for call in calls)
    stride = max(1.0, total / most)
    found, position = [], 0.0
    for call in calls:
        wanted = []
        while position < counts[call]:
            wanted.append(int(position) + 1)
            position += stride
        position -= counts[call]
        if wanted:
            found.append((call, wanted))
    return found


def remove_stores(root: Path) -> None:
    """Remove a store, the one it promotes to, and its exports."""
    for folder in (root, far(root), exports(root)):
        shutil.rmtree(folder, ignore_errors=True)


def _points(
    folder: Path, actions: Sequence[Any], points: Sequence[tuple[str, list[int]]], inject: str, goes_on: bool
) -> Iterator[tuple[str, Path, Any]]:
    for call, wanted in points:
        with Tracer(inject, call, max(wanted)) as tracer:
            for at in wanted:
                root = folder / f"{call}-{at}"
                yield call, root, tracer.run(root, actions, at, goes_on)
                remove_stores(root)


def kill_sweep(folder: Path, actions: Sequence[Any], points: Sequence[tuple[str, list[int]]]) -> Tally:
    """Kill the process just before each point, then judge the store and go on with it."""
    tally = Tally()
    for call, root, outcome in _points(folder, actions, points, "signal=SIGKILL", False):
        if outcome.status == 0:
            tally.missed += 1
            continue
        tally.points[call] += 1
        where = f"killed before {root.name}"
        if outcome.status != -9:
            tally.violations.append(f"{where}: ended with {outcome.status}: {outcome.notes[-1:]}")
        if root.exists():
            tally.slowest_open_s = max(tally.slowest_open_s, judge.opened_within(root))
        # Between making the lock's file and writing a line into it nobody is named there; after that somebody always is.
        lock = root / "writer.lock"
        noted = not lock.exists() or lock.stat().st_size > 0
        tally.violations += [f"{where}: {text}" for text in judge.violations(root, outcome.notes)]
        tally.violations += [f"{where}: {text}" for text in judge.goes_on(root, noted=noted)]
    return tally


def power_cut_sweep(folder: Path, kind: str, actions: Sequence[Any], points: Sequence[tuple[str, list[int]]]) -> Tally:
    """Kill the process just before each point and cut the power of its file system at once."""
    tally = Tally()
    with PowerCutDisk(folder / f"cuts-{kind}", kind) as disk:
        for call, root, outcome in _points(disk.mount_point, actions, points, "signal=SIGKILL", False):
            if outcome.status == 0:
                tally.missed += 1
                continue
            disk.cut()
            tally.points[call] += 1
            where = f"{kind}, power cut before {root.name}"
            tally.violations += [f"{where}: {text}" for text in judge.violations(root, outcome.notes)]
            tally.violations += [f"{where}: {text}" for text in judge.goes_on(root)]
    return tally


def errno_sweep(folder: Path, actions: Sequence[Any], points: Sequence[tuple[str, list[int]]], name: str) -> Tally:
    """Let one call fail with an errno; the process goes on, and no error of another kind than ours may come out."""
    tally = Tally()
    for call, root, outcome in _points(folder, actions, points, f"error={name}", True):
        tally.points[call] += 1
        where = f"{name} from {root.name}"
        if outcome.status != 0:
            tally.violations.append(f"{where}: ended with {outcome.status}: {outcome.notes[-1:]}")
        tally.violations += [f"{where}: {text}" for text in judge.violations(root, outcome.notes)]
        tally.violations += [f"{where}: {text}" for text in judge.goes_on(root)]
    return tally
