"""Compares what strace sees of a scenario with what the recorder writes down: the model knows of every change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crashlab.modelled import record
from crashlab.tracer import Tracer, calls_of

__all__ = ["bypassing_calls"]

_KINDS = {
    "mkdir": "make", "mkdirat": "make", "link": "make", "linkat": "make", "unlink": "drop", "rmdir": "drop", "unlinkat": "drop",
    "rename": "move", "renameat": "move", "renameat2": "move", "write": "write", "pwrite64": "write", "writev": "write",
    "ftruncate": "cut", "fsync": "sync", "fdatasync": "sync",
}  # fmt: skip


def bypassing_calls(folder: Path, actions: Sequence[Any]) -> tuple[int, list[str]]:
    """Return how many changing calls strace saw, and how they differ from the operations recorded."""
    folder.mkdir(exist_ok=True)
    log = folder / "log.strace"
    recording = record(folder / "recorded", actions)
    (folder / "traced").mkdir()
    with Tracer(log=log) as tracer:
        outcome = tracer.run(folder / "traced" / recording.store, actions)
    assert outcome.status == 0, outcome
    seen: list[str] = []
    strange: list[str] = []
    locks: set[str] = set()
    for name, arguments, result in calls_of(log, outcome.pid):
        if result < 0 or (name in ("fsync", "fdatasync") and str(folder / "traced") not in arguments):
            continue  # it changed nothing, or the folders above the store were synced
        if name == "openat":
            if "O_CREAT" not in arguments or (path := arguments.split('"')[1]) in locks:
                continue
            if "O_EXCL" not in arguments:
                locks.add(path)  # made by whoever is first, and opened again by others
            seen.append("make")
        elif name in _KINDS:
            seen.append(_KINDS[name])
        else:
            strange.append(f"{name}({arguments})")
    recorded = [op.kind for op in recording.ops]
    if seen != recorded:
        first = next((i for i, pair in enumerate(zip(seen, recorded, strict=False)) if pair[0] != pair[1]), -1)
        strange.append(
            f"operation {first}: strace saw {seen[first : first + 5]}, recorded are {recorded[first : first + 5]}"
        )
    return len(seen), strange
