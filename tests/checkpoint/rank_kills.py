"""Jobs of several ranks, and what must hold when one of them is killed while they save: for tests and for scripts/crash-tests."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from trajload.checkpoint.nursery import Child, Nursery
from trajload.checkpoint.store import Store

LIMIT_S = 600.0
LATE_S = 30.0
"""So much later than the ranks agreed to wait they may notice."""

OF_RANK_0 = ["begun", "part made", "files written", "part finished", "voting", "committing", "committed", "told"]
OF_OTHERS = ["begun", "part made", "files written", "part finished", "voting", "told"]
AFTER_THE_COMMIT = {"committed", "told"}


def all_kills(*worlds: int) -> list[tuple[int, int, str, str]]:
    """Return (ranks, who is killed, at which step of the protocol, mode) of all there are."""
    return [
        (world, victim, where, mode)
        for world in worlds
        for victim in range(world)
        for where in (OF_OTHERS if victim else OF_RANK_0)
        for mode in ("sync", "async")
    ]


def die(jobs: Jobs, world: int, victim: int, where: str, mode: str) -> Any:
    """Kill a rank while step 2 is saved; return what the ranks told."""
    return jobs.run("die_while_saving", world, victim, where, mode, expected=(victim,))


def what_is_wrong(
    jobs: Jobs, told: Any, store_folder: Path, world: int, victim: int, where: str, mode: str
) -> list[str]:
    """Look at the store after `die`, let two ranks go on, and return what does not hold."""
    wrong: list[str] = []

    def must(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(f"rank {victim} of {world} killed at {where!r}, {mode}: {what}")

    must(jobs.codes[victim] == -9, "it was not killed: this step is not reached")
    survivors = [answer for rank, answer in enumerate(told) if rank != victim]
    is_published = where in AFTER_THE_COMMIT
    store = Store(store_folder, create=False)
    steps = [commit.step for commit in store.commits()]
    must(steps == ([1, 2] if is_published else [1]), f"commits of steps {steps}")
    must(all(store.verify(commit) == [] for commit in store.commits()), "a commit is not whole")
    if where == "told":
        must(all(answer["raised"] is None for answer in survivors), f"survivors raise: {survivors}")
    else:
        kind = "CheckpointAbortedError: "
        must(all((answer["raised"] or "").startswith(kind) for answer in survivors), f"survivors: {survivors}")
        must(
            all(answer["after_s"] < answer["timeout_s"] + LATE_S for answer in survivors),
            f"survivors are late: {survivors}",
        )
        if victim != 0:
            named = f"rank {victim} did not come to the vote" in (survivors[0]["raised"] or "")
            must(named, f"rank 0 does not name the dead: {survivors[0]}")
    newest = 2 if is_published else 1
    again = jobs.run("go_on", 2, newest + 1)
    must([answer["step"] for answer in again] == [newest] * 2, f"the next job goes on from {again}")
    must([commit.step for commit in store.commits()][-1] == newest + 1, "the next job has not saved")
    must(len(list((store_folder / "gen").iterdir())) == len(store.commits()), "leftovers were not swept")
    return wrong


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
