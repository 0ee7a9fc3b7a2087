"""A file that changes while a loader reads it, one case after the other, each in a process of its own.

Run as a script, with a dataset and a JSON list of {"folder", "num_workers", "kind", "is_kept"}, the folders being copies
of it; prints a JSON list of {"status", "said"}. The cases are forks of one process, which has imported what they need.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import trajload as tl
from trajload.pipeline.gather_table import ResidentBudget


def change(shard: Path, kind: str) -> None:
    """Cut the file, overwrite it with zeros, or put a file of zeros in its place."""
    zeros = bytes(shard.stat().st_size)
    if kind == "cut":
        os.truncate(shard, 512)
    elif kind == "overwritten":
        with shard.open("r+b") as file:
            file.write(zeros)
    else:
        other = shard.with_suffix(".new")
        other.write_bytes(zeros)
        other.replace(shard)


ARGUMENTS: dict[str, Any] = {
    "window": tl.Window(num_steps=4),
    "global_batch_size": 16,
    "rank": 0,
    "world_size": 1,
    "streams": ["action", "reward"],
}


def digests(folder: str) -> list[str]:
    """Return those of the batches of a dataset that nobody changes."""
    with tl.Loader(folder, num_workers=0, **ARGUMENTS) as loader:
        return [loader.batch_at(k).digest() for k in range(40)]


def outcome(right: list[str], folder: str, num_workers: int, kind: str, is_kept: bool) -> str:
    """Say what comes of a loader whose file changes after twelve batches."""
    if not is_kept:
        ResidentBudget.of_machine = lambda num_parts=1: ResidentBudget(0, 0)  # type: ignore[method-assign, assignment]
    with tl.Loader(folder, num_workers=num_workers, prefetch=1, **ARGUMENTS) as loader:
        batches = iter(loader)
        for _ in range(12):
            next(batches)
        change(Path(folder) / "shards" / "000000.tar", kind)
        try:
            for batch in batches:
                assert batch.digest() == right[batch.train_step], "wrong bytes"
                if batch.train_step == 39:
                    return "right to the end"
        except tl.errors.ShardCorruptError as err:
            return f"refused {type(err).__name__}"
    return "ended early"


def in_child(right: list[str], case: dict[str, Any]) -> dict[str, Any]:
    """Return how a process ended that took the case, and what it said."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        status = 1
        try:
            os.write(into, outcome(right, **case).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(into)
    with os.fdopen(out) as file:
        said = file.read()
    return {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "said": said}


if __name__ == "__main__":
    unchanged = digests(sys.argv[1])
    assert threading.active_count() == 1, "a fork would lack the other threads"
    print(json.dumps([in_child(unchanged, case) for case in json.loads(sys.argv[2])]))
