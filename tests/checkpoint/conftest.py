"""Jobs of several ranks: processes that talk through a store which outlives each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_path import load

from trajload.checkpoint.nursery import Nursery

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def rank_jobs() -> ModuleType:
    """The functions of rank_jobs.py."""
    return load(HERE / "rank_jobs.py", importable=True)


@pytest.fixture(scope="session")
def trainees() -> ModuleType:
    """The trainings of trainees.py."""
    return load(HERE / "trainees.py", importable=True)


@pytest.fixture(scope="session")
def rank_kills() -> ModuleType:
    """The jobs of rank_kills.py, and what must hold of them."""
    return load(HERE / "rank_kills.py", importable=True)


class _SharedNursery(Nursery):
    """One that several threads may ask."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return super().ask(request)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with _SharedNursery() as started:
        yield started


@pytest.fixture(scope="module")
def jobs_in(nursery: Nursery, rank_jobs: ModuleType, rank_kills: ModuleType) -> Callable[[Path], Any]:
    """Makes jobs whose stores are in a folder."""
    return partial(rank_kills.Jobs, nursery, rank_jobs)


@pytest.fixture
def jobs(jobs_in: Callable[[Path], Any], tmp_path: Path) -> Any:
    return jobs_in(tmp_path)
