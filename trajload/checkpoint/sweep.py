"""Removes what no commit needs: generations of saves that ended early, what a removal left, temporary files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from trajload.checkpoint.catalog import Scan, live_files
from trajload.checkpoint.generation import parse_generation
from trajload.checkpoint.medium import Medium

__all__ = ["sweep_generations", "sweep_temporary"]

_TEMPORARY = re.compile(r"\.[0-9A-Za-z]{1,64}\.tmp")
_AT_ROOT = re.compile(r"\.(?:probe-[0-9A-Za-z]{1,64}(?:-link)?|LATEST-[0-9A-Za-z]{1,64}\.tmp|[0-9A-Za-z]{1,64}\.tmp)")


def sweep_generations(
    medium: Medium, found: Scan, *, begun: Collection[str], abandoned: Callable[[str], bool]
) -> list[str]:
    """Remove the files of generations that no record names, and return those generations.

    Files that live commits refer to stay. Where a record is damaged, the generation of its number stays too, until the record goes.

    Args:
        medium: Where the store is.
        found: All records, read under the lock.
        begun: Generations being written by this very store.
        abandoned: Whether a generation, which no record names, may be taken for nobody's.
    """
    if found.unsure:
        return []
    own, used = live_files(found.commits)
    damaged = {fault.seq for fault in found.faults}
    removed = []
    for name in medium.names("gen"):
        path = f"gen/{name}"
        parsed = parse_generation(path)
        if parsed is None or path in own or path in begun or parsed[0] in damaged:
            continue
        if not abandoned(path):
            continue
        files = medium.files(path)
        gone = [file for file in files if file not in used]
        for file in gone:
            medium.remove(file)
        medium.prune(path)
        if gone or not files:
            removed.append(path)
    return removed


def sweep_temporary(medium: Medium) -> list[str]:
    """Remove the temporary files of writers that were killed, and return them."""
    removed = []
    for folder, pattern in (("commits", _TEMPORARY), ("pins", _TEMPORARY), ("", _AT_ROOT)):
        for name in medium.names(folder):
            if pattern.fullmatch(name):
                path = f"{folder}/{name}" if folder else name
                medium.remove(path)
                removed.append(path)
    return removed
