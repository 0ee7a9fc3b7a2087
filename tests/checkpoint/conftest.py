"""Jobs of several ranks: processes that talk through a store which outlives each of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_path import load

from trajload.checkpoint.nursery import Child, Nursery

HERE = Path(__file__).parent
LIMIT_S = 240.0


@pytest.fixture(scope="session")
def rank_jobs() -> ModuleType:
    """The functions of rank_jobs.py."""
    return load(HERE / "rank_jobs.py", importable=True)


@pytest.fixture(scope="session")
def trainees() -> ModuleType:
    """The trainings of trainees.py."""
    return load(HERE / "trainees.py", importable=True)


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


class Jobs:
    """Runs a function on all ranks of a job and returns what each told; None of one that was killed."""

    def __init__(self, nursery: Nursery, module: ModuleType, folder: Path) -> None:
        self._nursery, self._module, self._folder = nursery, module, folder
        self._number = 0
        self.codes: list[int | None] = []

    def run(self, name: str, world: int, *arguments: Any, store: str = "store", expected: tuple[int, ...] = ()) -> Any:
        """Call `name(folder, rank, world, port, out, *arguments)` on each rank; `expected` may be killed."""
        self._number += 1
        place = self._folder / f"job-{self._number}"
        place.mkdir()
        server = self._nursery.start(self._module.serve, str(place / "port"), stderr=place / "serve.txt")
        children: list[Child] = []
        try:
            port = self._wait(lambda: (place / "port").exists() and int((place / "port").read_text()), server, place)
            outs = [place / f"out-{rank}" for rank in range(world)]
            function = getattr(self._module, name)
            for rank in range(world):
                row = (str(self._folder / store), rank, world, port, str(outs[rank]), *arguments)
                children.append(self._nursery.start(function, *row, stderr=place / f"stderr-{rank}"))
            self._wait(lambda: all(child.poll() is not None for child in children), server, place)
        finally:
            for child in [*children, server]:
                child.kill()
            while any(child.poll() is None for child in [*children, server]):
                time.sleep(0.005)
        self.codes = [child.code for child in children]
        said = [(place / f"stderr-{rank}").read_text()[-3000:] for rank in range(world)]
        wrong = [said[r] for r in range(world) if self.codes[r] != 0 and not (self.codes[r] == -9 and r in expected)]
        assert not wrong, "\n".join(wrong)
        return [json.loads(out.read_text()) if out.exists() else None for out in outs]

    def _wait(self, until: Any, server: Child, place: Path) -> Any:
        end = time.monotonic() + LIMIT_S
        while not (found := until()):
            assert time.monotonic() < end, "\n".join(p.read_text()[-2000:] for p in place.glob("stderr-*"))
            assert server.poll() is None, (place / "serve.txt").read_text()
            time.sleep(0.01)
        return found


@pytest.fixture(scope="module")
def jobs_in(nursery: Nursery, rank_jobs: ModuleType) -> Callable[[Path], Jobs]:
    """Makes jobs whose stores are in a folder."""
    return partial(Jobs, nursery, rank_jobs)


@pytest.fixture
def jobs(jobs_in: Callable[[Path], Jobs], tmp_path: Path) -> Jobs:
    return jobs_in(tmp_path)
