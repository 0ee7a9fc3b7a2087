"""A small store, and a way to commit to it in one call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from by_path import load
from in_threads import in_threads

from trajload.checkpoint.entries import Commit
from trajload.checkpoint.store import Store
from trajload.errors import WriterConflictError

Save = Callable[..., Commit]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "checkpoints")


@pytest.fixture
def save() -> Save:
    """Commit `files` at `step`, the same files in every part."""

    def commit(
        store: Store,
        step: int,
        files: Mapping[str, bytes] | None = None,
        *,
        world: int = 1,
        info: Mapping[str, Any] | None = None,
    ) -> Commit:
        content = {"model.safetensors": b"weights of step %d " % step * 100} if files is None else files
        with store.writer():
            generation = store.begin(step, world=world)
            votes = []
            for rank in range(world):
                part = generation.part(rank)
                for name, data in content.items():
                    part.write(name, [data])
                votes.append(part.finish({"rank": rank}))
            return store.commit(generation, votes, info or {})

    return commit


@pytest.fixture(scope="session")
def kept() -> ModuleType:
    """The helpers of kept.py: states into a store, and exact comparison."""
    return load(Path(__file__).with_name("kept.py"))


@pytest.fixture
def race(save: Save) -> Callable[..., None]:
    """Writers of one store begin at once and commit as often as they can: no success that was told is missing or told twice."""

    def run(opened: Callable[[], Any], *, num_writers: int, num_steps: int) -> None:
        won: dict[int, int] = {}
        refused: set[tuple[int, int]] = set()
        start = threading.Barrier(num_writers, timeout=300.0)

        def write(who: int) -> None:
            store = opened()
            start.wait()
            for step in range(num_steps):
                try:
                    commit = save(store, step, {"who": b"%d" % who}, info={"who": who, "step": step})
                    assert won.setdefault(commit.seq, who) == who
                except WriterConflictError:
                    refused.add((who, step))

        in_threads(write, range(num_writers))
        store = opened()
        assert {commit.seq: commit.info["who"] for commit in store.commits()} == won
        assert not refused & {(c.info["who"], c.info["step"]) for c in store.commits()}, "a false conflict"
        assert store.faults == []
        assert all(store.verify(commit) == [] for commit in store.commits())

    return run
