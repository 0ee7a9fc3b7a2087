"""Compares what strace sees of a scenario with what the recorder writes down: the model knows of every change."""

from __future__ import annotations

import re
from collections import Counter
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
    log = folder / "log.strace"
    recording = record(folder / "recorded", actions)
    (folder / "traced").mkdir()
    with Tracer(log=log) as tracer:
        outcome = tracer.run(folder / "traced" / recording.store, actions)
    assert outcome.status == 0, outcome
    seen: Counter[str] = Counter()
    strange = []
    for name, arguments, result in calls_of(log, outcome.pid):
        if result < 0 or (name in ("fsync", "fdatasync") and str(folder / "traced") not in arguments):
            continue  # it changed nothing, or the folders above the store were synced
        if name == "openat":
            if "O_CREAT" in arguments and "O_EXCL" in arguments:
                seen["make"] += 1
            elif "O_CREAT" in arguments and not arguments.split('"')[1].endswith(".lock"):
                strange.append(f"openat({arguments})")
        elif name not in _KINDS:
            strange.append(f"{name}({arguments})")
        else:
            seen[_KINDS[name]] += 1
    recorded = Counter(op.kind for op in recording.ops)
    seen["make"] += len(set(re.findall(r'"([^"]+\.lock)", [^)]*O_CREAT', log.read_text())))
    strange += [
        f"{kind}: strace saw {seen[kind]}, recorded were {recorded[kind]}"
        for kind in sorted({*seen, *recorded})
        if seen[kind] != recorded[kind]
    ]
    return sum(seen.values()), strange
