"""Says what is wrong with a store after a crash, given what its process had noted before it died.

What must hold, whatever happened:

1. The store opens, and the newest commit it gives is at least as new as the last one acknowledged.
2. What it gives was really saved, and every byte of it is as it was.
3. Every acknowledged commit that no retention rule has given up is there and whole; so is every pinned one, and so is
   whatever else the store lists.
4. Nobody was told of another writer, since there is none.
5. The next save works and is then the newest; a sweep leaves nothing behind that belongs to no commit.
6. An export is there whole or not at all, and is there if it was acknowledged; the next one of its name leaves nothing else behind.
7. A rehearsal of a removal says what the removal then does, and takes no dead process for one that writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from crashlab.board import Board
from crashlab.scenario import EXPORTED, WORLD, Player, content, exports, far, file_names

from trajload.checkpoint.entries import Commit
from trajload.checkpoint.store import Store
from trajload.errors import TrajloadError

__all__ = ["Promise", "Reading", "check", "export_faults", "goes_on", "opened_within", "promised", "violations"]

Notes = Sequence[tuple[str, dict[str, Any]]]


@dataclass
class Promise:
    """What the notes of a process oblige a store to.

    Attributes:
        must: Step of every commit that has to be there, with its digest.
        last: The newest acknowledged step.
        tried: Every step whose saving was begun; anything else in the store is an invention.
    """

    must: dict[int, str] = field(default_factory=dict)
    last: int | None = None
    tried: set[int] = field(default_factory=set)


def promised(notes: Notes) -> tuple[Promise, Promise]:
    """Return what the store and the second store owe."""
    near, distant, pins, acked = Promise(), Promise(), dict[str, int](), list[int]()
    for kind, values in notes:
        if kind == "try":
            near.tried.add(values["step"])
        elif kind == "ack":
            near.must[values["step"]] = values["digest"]
            near.last = values["step"]
            acked.append(values["step"])
        elif kind == "pin":
            pins[values["name"]] = values["step"]
        elif kind == "unpin":
            pins.pop(values["name"], None)
        elif kind == "retain":
            # From here on a victim may be gone. The rule is stated anew rather than asked of the store. A save that failed
            # may have left a whole commit all the same; it then counts as one of the last ones.
            latest = sorted({*acked, *near.tried})[-values["last"] :]
            kept = {
                *latest,
                *pins.values(),
                *(step for step in acked if values["every"] and step % values["every"] == 0),
            }
            near.must = {step: digest for step, digest in near.must.items() if step in kept}
        elif kind == "far try":
            distant.tried.add(values["step"])
        elif kind == "far ack":
            distant.must[values["step"]] = values["digest"]
            distant.last = values["step"]
    return near, distant


class Reading(Protocol):
    """What a process sees of a store that it opens."""

    name: str

    def newest(self) -> Commit | None:
        """Return the newest commit, all of it verified."""
        ...

    def commits(self) -> list[Commit]:
        """Return all commits that are offered."""
        ...

    def files(self, commit: Commit, rank: int) -> dict[str, bytes]:
        """Return the files of a part."""
        ...


class StoreReading:
    """Reads a folder through `Store`, as users do."""

    def __init__(self, root: Path, open_store: Callable[[Path], Store]) -> None:
        self.name, self._store = root.name, open_store(root)

    def newest(self) -> Commit | None:
        return self._store.newest(verify="full")[0]

    def commits(self) -> list[Commit]:
        return self._store.commits()

    def files(self, commit: Commit, rank: int) -> dict[str, bytes]:
        part = self._store.part(commit, rank)
        return {name: part.read(name, verify=False) for name in part.files}


def _content_faults(reading: Reading, commit: Commit) -> list[str]:
    """Return how the files of a commit differ from what its step says they must hold."""
    found = []
    if len(commit.parts) != WORLD:
        return [f"step {commit.step}: got {len(commit.parts)} parts, expected {WORLD}"]
    for rank in range(WORLD):
        try:
            files = reading.files(commit, rank)
        except (OSError, TrajloadError) as error:
            found.append(f"step {commit.step} rank {rank}: {type(error).__name__}: {error}")
            continue
        if sorted(files) != file_names(rank):
            found.append(f"step {commit.step} rank {rank}: got files {sorted(files)}")
        found += [
            f"step {commit.step} rank {rank}: {name} is not what was saved"
            for name, data in files.items()
            if data != content(commit.step, rank, name)
        ]
    return found


def check(open_reading: Callable[[], Reading], promise: Promise) -> list[str]:
    """Return what is wrong with a store, given what it owes."""
    try:
        reading = open_reading()
        newest, commits = reading.newest(), {commit.step: commit for commit in reading.commits()}
    except TrajloadError as error:
        return [f"it does not open: {type(error).__name__}: {error}"]
    found = []
    if promise.last is not None and (newest is None or newest.step < promise.last):
        got = None if newest is None else newest.step
        found.append(f"lost: newest is step {got}, acknowledged was step {promise.last}")
    if newest is not None:
        if newest.step not in promise.tried:
            found.append(f"invented: step {newest.step} was never saved")
        found += [f"invalid selected: {fault}" for fault in _content_faults(reading, newest)]
    for step, digest in promise.must.items():
        if step not in commits:
            found.append(f"lost: step {step} was acknowledged and kept, and is not there")
        elif commits[step].digest != digest:
            found.append(f"changed: step {step} is {commits[step].digest}, acknowledged as {digest}")
    for step, commit in commits.items():
        if newest is None or step != newest.step:
            what = "lost" if step in promise.must else "invalid offered"
            found += [f"{what}: {fault}" for fault in _content_faults(reading, commit)]
    return found


def violations(root: Path, notes: Notes, open_store: Callable[[Path], Store] = Store) -> list[str]:
    """Return what is wrong with the store at `root` and the one it promoted to; does not save into them."""
    near, distant = promised(notes)
    found = [
        f"false conflict, there is one writer: {values['text']}"
        for kind, values in notes
        if kind == "error" and values["type"] == "WriterConflictError"
    ]
    found += check(lambda: StoreReading(root, open_store), near)
    if far(root).exists() or distant.last is not None:
        found += [f"second store: {text}" for text in check(lambda: StoreReading(far(root), open_store), distant)]
    folder = exports(root)
    there = {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
    return found + export_faults(there, notes) + _rehearsal_faults(notes)


def export_faults(there: Mapping[str, bytes | None], notes: Notes) -> list[str]:
    """Return what is wrong with exports, given all below their folder: bytes of files, None for folders."""
    tried = {str(values["step"]) for kind, values in notes if kind == "export try"}
    acked = {str(values["step"]) for kind, values in notes if kind == "export ack"}
    seen = {path for path in there if "/" not in path and not path.startswith(".")}
    found = [f"export {name} was acknowledged and is not there" for name in sorted(acked - seen)]
    found += [f"export {name} was never made" for name in sorted(seen - tried)]
    for name in sorted(seen & tried):
        expected = {f"{name}/{file}": content(int(name), 0, whose) for file, whose in EXPORTED.items()}
        if {path: data for path, data in there.items() if path.startswith(f"{name}/")} != expected:
            found.append(f"export {name} is there, and is not whole")
    return found


def _rehearsal_faults(notes: Notes) -> list[str]:
    """Return where a removal did something else than the rehearsal before it had said, which had met no fault."""
    found, said = [], None
    for kind, values in notes:
        if kind == "rehearsed":
            said = values
        elif kind == "cleaned" and said is not None:
            done = {name: values[name] for name in ("gone", "swept")}
            if not said["faults"] and done != {name: said[name] for name in done}:
                found.append(f"rehearsed was {said}, and done {done}")
    return found


def goes_on(
    root: Path, open_store: Callable[[Path], Store] = Store, *, sweeps: bool = True, noted: bool = False
) -> list[str]:
    """Return what hinders the next process from working on: it cleans up, saves step 1000, exports it, and finds it again.

    Args:
        root: The store.
        open_store: Opens it.
        sweeps: Whether a sweep is expected to leave nothing behind.
        noted: Whether whoever wrote the store before could note in the lock's file who it was.
    """
    board = Board(1 << 16)
    try:
        player = Player(root, board, open_store)
        player.play([("rehearse", 100, 0), ("clean", 100, 0), ("save", 1000)])
        newest, faults = player.store.newest(verify="full")
        found = [] if newest is not None and newest.step == 1000 else [f"saved step 1000, newest is {newest}"]
        found += [f"newest names a fault: {fault}" for fault in faults]
        found += _rehearsal_faults(board.notes())
        rehearsed = next(values for kind, values in board.notes() if kind == "rehearsed")
        if noted and rehearsed["busy"]:
            found.append(f"the dead is taken for a writer: {rehearsed['busy']}")
        if not sweeps:
            return found
        left = [path.name for path in exports(root).glob(".*.tmp")]
        player.play([("export", 1000, name) for name in {"1000", *(name.split(".")[1] for name in left)}])
        found += [f"left over: {path.name}" for path in exports(root).glob(".*")]
        return found + _left_over(player.store)
    except (TrajloadError, OSError) as error:
        return [f"the next save fails: {type(error).__name__}: {error}"]
    finally:
        board.close()


def _left_over(store: Store) -> list[str]:
    """Return generations that no commit refers to, and temporary files."""
    used = {
        entry.path
        for commit in store.commits()
        for rank in range(WORLD)
        for entry in store.part(commit, rank).files.values()
    }
    used |= {part.path + "/" for commit in store.commits() for part in commit.parts}
    generations = list((store.root / "gen").iterdir())
    unused = [path.name for path in generations if not any(path.name in Path(name).parts for name in used)]
    temporary = [path.name for path in store.root.rglob("*") if path.name.endswith(".tmp")]
    return [f"left over: {name}" for name in [*unused, *temporary]]


def opened_within(root: Path) -> float:
    """Return the seconds it takes to open the store and find its newest commit."""
    start = time.perf_counter()
    Store(root).newest(verify="full")
    return time.perf_counter() - start
