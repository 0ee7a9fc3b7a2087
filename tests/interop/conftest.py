"""A loader to wrap, what its batches must be, and the script whose lives are killed."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_path import load

import trajload as tl

HERE = Path(__file__).parent
LIFE_TIMEOUT_S = 900
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
"""Of programs that tests start: this copy of trajload is the one they import."""


@pytest.fixture(scope="session", autouse=True)
def helpers() -> None:
    """Start the helper processes of multiprocessing, which live as long as this one, before leaks are looked for."""
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


@pytest.fixture(scope="session")
def need() -> Callable[[str], None]:
    """Skip where a framework is not installed; fail where CI promises it."""

    def check(module: str) -> None:
        if importlib.util.find_spec(module) is None:
            message = f"{module} is not installed: pip install 'trajload[trainers]'"
            if os.environ.get("CI"):
                pytest.fail(message)
            pytest.skip(message)

    return check


@pytest.fixture(scope="session")
def make_loader(demo_dataset: Path) -> Callable[..., tl.Loader]:
    """Return a loader of small windows; arguments may be given otherwise."""

    def make(**options: Any) -> tl.Loader:
        arguments: dict[str, Any] = {
            "window": tl.Window(num_steps=4, pad="edge"),
            "global_batch_size": 6,
            "seed": 11,
            "rank": 0,
            "world_size": 1,
            "num_workers": 1,
        }
        return tl.Loader(**{"dataset": demo_dataset, **arguments, **options})

    return make


@pytest.fixture(scope="session")
def want(make_loader: Callable[..., tl.Loader]) -> list[str]:
    """Digests of the first batches of `make_loader()`, made plainly."""
    with make_loader() as loader:
        return [loader.batch_at(train_step).digest() for train_step in range(16)]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment for programs that tests start."""
    return ENVIRONMENT


@pytest.fixture(scope="session")
def lives() -> ModuleType:
    """The module of lives.py."""
    return load(HERE / "lives.py", importable=True)


@pytest.fixture(scope="session")
def want_rows(lives: ModuleType, demo_dataset: Path) -> list[list[str]]:
    """Digests of each row of the global batches that lives.py trains on, made plainly by one rank."""
    with lives.make_loader(str(demo_dataset), 0, 1) as loader:
        return [lives.row_digests(loader.batch_at(train_step)) for train_step in range(lives.LAST)]


@pytest.fixture(scope="module")
def live(
    lives: ModuleType, want_rows: list[list[str]], demo_dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, tuple[str, ...]], None]:
    """Check what each life of a framework was given. A group of them is run once, by one program, when first asked for."""
    folders: dict[tuple[str, ...], Path] = {}

    def check(framework: str, group: tuple[str, ...]) -> None:
        if group not in folders:
            folders[group] = folder = tmp_path_factory.mktemp("lives")
            command = [sys.executable, str(HERE / "lives.py"), str(demo_dataset), str(folder), *group]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIFE_TIMEOUT_S, env=ENVIRONMENT)
            (folder / "errors").write_text(done.stderr)
        folder, saved = folders[group] / framework, 0
        for number, (world_size, killed_at) in enumerate(lives.THROUGH[framework][0]):
            last = lives.LAST - 1 if killed_at is None else killed_at
            expected = list(range(saved, last + 1))
            logs = [folder / f"{number}-{rank}.jsonl" for rank in range(world_size)]
            assert all(log.exists() for log in logs), (folders[group] / "errors").read_text()[-6000:]
            ranks = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
            assert [[line["train_step"] for line in rank] for rank in ranks] == [expected] * world_size, (
                f"life {number}"
            )
            for i, train_step in enumerate(expected):
                rows = [row for rank in ranks for row in rank[i]["rows"]]
                assert rows == want_rows[train_step], f"life {number}, train_step {train_step}"
            # a checkpoint that was due at the kill was not written yet
            saved = max(saved, last // lives.EVERY * lives.EVERY)

    return check
