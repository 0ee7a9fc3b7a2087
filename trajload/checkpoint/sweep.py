"""Removes what no commit needs: generations of saves that ended early, what a removal left, temporary files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from trajload.checkpoint.catalog import Scan, live_files
from trajload.checkpoint.generation import parse_generation
from trajload.checkpoint.medium import Medium
from trajload.errors import CheckpointError

__all__ = ["refuse_lost_records", "sweep_generations", "sweep_temporary"]

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
    refuse_lost_records(medium, found.highest_seq)
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


def refuse_lost_records(medium: Medium, highest_seq: int) -> None:
    """Raise CheckpointError where there is no record, and a generation shows that there has been one.

    The first save of a store has number 1 until it commits, and removal leaves the newest record: so a higher number without any
    record means that `commits/` was lost, such as by a repair of the file system. Its generations are all that is left then.
    """
    if highest_seq:
        return
    if higher := [name for name in medium.names("gen") if (parse_generation(f"gen/{name}") or (0,))[0] > 1]:
        raise CheckpointError(
            f"{medium.name!r} has lost its records: 'commits' is empty, and 'gen' holds {max(higher)!r}, so there have been earlier "
            "checkpoints. Bring 'commits' back (a backup, or lost+found), or use another folder; nothing was removed."
        )


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
