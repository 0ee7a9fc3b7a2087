"""What the store is made to do while it is killed, cut off or given errors: saves, removal, pins, copies, exports, resume.

The bytes of every file follow from its step, rank and name alone, so that whoever judges afterwards needs no copy and
does not have to believe the store's own digests. Imports neither torch nor numpy: a case takes milliseconds.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from crashlab.board import Board

from trajload.checkpoint.cleaning import clean
from trajload.checkpoint.entries import Keep
from trajload.checkpoint.new_folder import publish_folder
from trajload.checkpoint.store import Store
from trajload.errors import TrajloadError

__all__ = [
    "EXPORTED",
    "FOREIGN",
    "FROZEN",
    "MUTANT_SCRIPT",
    "SCRIPT",
    "SHORT_SCRIPT",
    "Player",
    "content",
    "exports",
    "far",
    "file_names",
]

FROZEN = "encoder.bin"
"""A component that never changes: written by the first save, referred to by all later ones."""

FOREIGN = "dcp/shard.bin"
"""A file that somebody else writes, without syncing it, and that the last rank takes in."""

EXPORTED = {"config.json": "state.json", "model.safetensors": "model.bin"}
"""Files of an export, and whose content they have."""

_SIZES = {"model.bin": 9_001, "state.json": 300, FROZEN: 4_500, FOREIGN: 6_000}
WORLD = 2

Action = tuple[Any, ...]

SCRIPT: tuple[Action, ...] = (
    ("save", 10),
    ("save", 20),
    ("pin", "first", 10),
    ("save", 30),
    ("retain", 2, 0),
    ("give up", 35),
    ("save", 40),
    ("retain", 2, 0),
    ("promote", 40),
    ("export", 40),
    ("give up", 45),
    ("reopen",),
    ("rehearse", 2, 0),
    ("clean", 2, 0),
    ("save", 50),
    ("retain", 2, 25),
    ("unpin", "first"),
    ("save", 60),
    ("save", 70),
    ("retain", 1, 25),
    ("promote", 70),
    ("export", 70),
    ("reopen",),
    ("sweep",),
    ("save", 80),
)
"""Every operation that changes files, several times, and resuming in between."""

SHORT_SCRIPT: tuple[Action, ...] = (
    ("save", 10),
    ("save", 20),
    ("pin", "first", 10),
    ("save", 30),
    ("retain", 2, 0),
    ("give up", 35),
    ("reopen",),
    ("rehearse", 1, 0),
    ("clean", 1, 0),
    ("promote", 30),
    ("export", 30),
    ("save", 40),
)
"""The same kinds of operations, each as rarely as possible."""

MUTANT_SCRIPT: tuple[Action, ...] = (("save", 10), ("save", 20), ("save", 30), ("retain", 1, 0), ("save", 40))
"""What shows a broken protocol soonest."""


def file_names(rank: int) -> list[str]:
    """Return the names of the files of a rank's part."""
    return sorted(name for name in _SIZES if name != FOREIGN or rank == WORLD - 1)


@functools.lru_cache(maxsize=256)
def content(step: int, rank: int, name: str) -> bytes:
    """Return what a file must hold, a function of its arguments."""
    step = 0 if name == FROZEN else step
    return hashlib.shake_128(f"{step}/{rank}/{name}".encode()).digest(_SIZES[name])


def chunks(step: int, rank: int, name: str) -> Iterator[bytes]:
    """Return the content in pieces that end off the 4 KiB grid."""
    data = content(step, rank, name)
    for start in range(0, len(data), 5_000):
        yield data[start : start + 5_000]


class Player:
    """Carries out actions on a store, and notes on the board what is begun and what has been acknowledged.

    Args:
        root: Folder of the store; `<root>-far` is the store that commits are promoted to.
        board: Where notes go.
        open_store: Makes a store from a folder; tests hand in ones with a disk of their own, or with a broken protocol.
    """

    def __init__(self, root: Path, board: Board, open_store: Callable[[Path], Store] = Store) -> None:
        self.root, self.board, self._open = root, board, open_store
        self.store = open_store(root)
        self.refers = True
        """Whether a component that has not changed is referred to instead of written again."""

    def play(self, actions: Sequence[Action], stop_on: tuple[type[BaseException], ...] = ()) -> None:
        """Carry out `actions`; an error of a type in `stop_on` is noted and the next action follows."""
        for kind, *arguments in actions:
            try:
                getattr(self, kind.replace(" ", "_"))(*arguments)
            except stop_on as error:
                self.board.note("error", action=kind, type=type(error).__name__, text=str(error))

    def save(self, step: int) -> None:
        """Write and commit one checkpoint of two parts."""
        self.board.note("try", step=step)
        with self.store.writer():
            previous, _ = self.store.newest(verify="record")
            generation = self.store.begin(step, world=WORLD)
            parts = []
            for rank in range(WORLD):
                joined = generation if rank == 0 else self.store.join(generation.path, generation.nonce)
                part = joined.part(rank)
                for name in file_names(rank):
                    if name == FOREIGN:
                        _write_unsynced(part.make_folder("dcp") / "shard.bin", content(step, rank, name))
                        part.adopt("dcp")
                    elif self.refers and name == FROZEN and previous is not None:
                        part.refer(name, self.store.part(previous, rank).files[name])
                    else:
                        part.write(name, chunks(step, rank, name))
                parts.append(part.finish({"rank": rank}))
            commit = self.store.commit(generation, parts, {"metrics": {"loss": 1.0 / step}})
        self.board.note("ack", step=step, seq=commit.seq, digest=commit.digest)

    def give_up(self, step: int) -> None:
        """Begin a checkpoint and leave it, as a process does that is out of luck."""
        with self.store.writer():
            part = self.store.begin(step, world=WORLD).part(0)
            part.write("model.bin", chunks(step, 0, "model.bin"))

    def retain(self, last: int, every: int) -> None:
        """Remove what the rule does not keep."""
        self.board.note("retain", last=last, every=every)
        with self.store.writer():
            self.store.retain(Keep(last=last, every=every))
        self.board.note("retained")

    def pin(self, name: str, step: int) -> None:
        """Keep a commit for good."""
        with self.store.writer():
            commit = self.store.pick(step)
            self.store.pin(name, commit)
        self.board.note("pin", name=name, step=commit.step)  # the closest one, where the very step was not saved

    def unpin(self, name: str) -> None:
        """Give a kept commit up."""
        self.board.note("unpin", name=name)
        with self.store.writer():
            self.store.unpin(name)

    def promote(self, step: int) -> None:
        """Copy a commit to the second store."""
        commit = self.store.pick(step)
        self.board.note("far try", step=commit.step)
        target = self._open(far(self.root))
        with target.writer():
            copied = self.store.promote(commit, target)
        self.board.note("far ack", step=copied.step, seq=copied.seq, digest=copied.digest)

    def reopen(self) -> None:
        """Start as a new process would: open, pick the newest good commit."""
        self.store = self._open(self.root)
        commit, faults = self.store.newest(verify="full")
        self.board.note("resumed", step=commit.step if commit else None, faults=[str(fault) for fault in faults])

    def sweep(self) -> None:
        """Remove what belongs to no commit."""
        with self.store.writer():
            self.store.sweep()

    def rehearse(self, last: int, every: int) -> None:
        """Say what `clean` would do: who seems to write, and what would go."""
        told = clean(self.store, Keep(last=last, every=every), dry_run=True)
        busy = [str(fault) for fault in told.faults if "writes this store" in fault.what]
        faults = [str(fault) for fault in told.faults]
        gone = [commit.step for commit in told.removed]
        self.board.note("rehearsed", busy=busy, faults=faults, gone=gone, swept=told.swept)

    def clean(self, last: int, every: int) -> None:
        """Do what `trajload checkpoints gc` does."""
        self.board.note("retain", last=last, every=every)
        done = clean(self.store, Keep(last=last, every=every), dry_run=False)
        self.board.note("cleaned", gone=[commit.step for commit in done.removed], swept=done.swept)

    def export(self, step: int, name: str = "") -> None:
        """Write weights of a commit to a folder beside the store."""
        commit = self.store.pick(step)
        part = self.store.part(commit, 0)
        target = exports(self.root) / (name or str(commit.step))
        self.board.note("export try", step=commit.step)
        publish_folder(target, {file: part.chunks(whose) for file, whose in EXPORTED.items()}, self.store._medium.disk)
        self.board.note("export ack", step=commit.step)


def _write_unsynced(path: Path, data: bytes) -> None:
    """Write a file as other libraries do: nothing brings it to the disk."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
    except OSError as error:  # theirs, and not the store's to put into words
        raise TrajloadError(f"the other library failed: {error}") from error


def far(root: Path) -> Path:
    """Return the folder of the second store."""
    return root.with_name(root.name + "-far")


def exports(root: Path) -> Path:
    """Return the folder that exports are made in."""
    return root.with_name(root.name + "-exports")
