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

import trajload as tl

HERE = Path(__file__).parent
LIFE_TIMEOUT_S = 300
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
"""Of programs that tests start: this copy of trajload is the one they import."""


@pytest.fixture(scope="session", autouse=True)
def helpers() -> None:
    """Start the helper processes of multiprocessing, which live as long as this one, before leaks are looked for."""
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


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
    spec = importlib.util.spec_from_file_location("lives", HERE / "lives.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lives"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def want_rows(lives: ModuleType, demo_dataset: Path) -> list[list[str]]:
    """Digests of each row of the global batches that lives.py trains on, made plainly by one rank."""
    with lives.make_loader(str(demo_dataset), 0, 1) as loader:
        return [lives.row_digests(loader.batch_at(train_step)) for train_step in range(lives.LAST)]


@pytest.fixture
def live(lives: ModuleType, want_rows: list[list[str]], demo_dataset: Path, tmp_path: Path) -> Callable[[str], None]:
    """Run the lives of a framework, and check what each was given."""

    def run(framework: str) -> None:
        command = [sys.executable, str(HERE / "lives.py"), framework, str(demo_dataset), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIFE_TIMEOUT_S, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr[-6000:]
        saved = 0
        for number, (world_size, killed_at) in enumerate(lives.THROUGH[framework][0]):
            logs = [(tmp_path / f"{number}-{rank}.jsonl").read_text().splitlines() for rank in range(world_size)]
            ranks = [[json.loads(line) for line in log] for log in logs]
            last = lives.LAST - 1 if killed_at is None else killed_at
            expected = list(range(saved, last + 1))
            assert [[line["train_step"] for line in rank] for rank in ranks] == [expected] * world_size, (
                f"life {number}"
            )
            for i, train_step in enumerate(expected):
                rows = [row for rank in ranks for row in rank[i]["rows"]]
                assert rows == want_rows[train_step], f"life {number}, train_step {train_step}"
            # a checkpoint that was due at the kill was not written yet
            saved = max(saved, last // lives.EVERY * lives.EVERY)

    return run
