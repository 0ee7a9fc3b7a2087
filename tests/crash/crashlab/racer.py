"""One of several writers of a store; a race starts two of these.

    python racer.py ROOT meet|crowd renames|links ROUNDS

meet    locks that always say yes, as on a file system without any: begins a checkpoint, says "ready", commits at "go".
crowd   real locks: saves as often as asked, as soon as it gets the store.
Prints one JSON line for each round: [seq, digest], or null where another writer won.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]

from crashlab.mutants import RenamingDisk

from trajload.checkpoint.disk import Disk
from trajload.checkpoint.entries import Keep
from trajload.checkpoint.store import Store
from trajload.errors import WriterConflictError


def _lockless(base: type[Disk]) -> Disk:
    class Lockless(base):  # type: ignore[misc,valid-type]
        def flock(self, fd: int, path: Path, *, patience_s: float = 0.0) -> bool:
            return True

    return Lockless()


def _prepare(store: Store, step: int) -> tuple[Any, list[Any]]:
    generation = store.begin(step)
    part = generation.part(0)
    part.write("state.json", [b"%d" % step])
    return generation, [part.finish()]


def meet(store: Store, rounds: int) -> None:
    """Commit at the same moment as the others, `rounds` times."""
    for number in range(rounds):
        with store.writer():
            generation, parts = _prepare(store, number)
            print("ready", flush=True)
            sys.stdin.readline()
            try:
                commit = store.commit(generation, parts, {})
                print(json.dumps([commit.seq, commit.digest]), flush=True)
            except WriterConflictError:
                print("null", flush=True)
            sys.stdin.readline()


def crowd(store: Store, rounds: int) -> None:
    """Save `rounds` times, each time as soon as the store is free."""
    done = 0
    while done < rounds:
        try:
            with store.writer():
                commit = store.commit(*_prepare(store, done), {})
                done += 1
                print(json.dumps([commit.seq, commit.digest]), flush=True)
                if done % 10 == 0:
                    store.retain(Keep(last=5))
        except WriterConflictError:
            continue


if __name__ == "__main__":
    root, how, publishing, rounds = sys.argv[1:]
    disk = RenamingDisk if publishing == "renames" else Disk
    opened = Store(root, disk=_lockless(disk) if how == "meet" else disk())
    (meet if how == "meet" else crowd)(opened, int(rounds))
