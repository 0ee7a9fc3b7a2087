"""Flips single bits of a checkpoint and cuts its files, and sees whether the store notices and steps back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from crashlab.board import Board
from crashlab.scenario import Player

from trajload.checkpoint.entries import Commit, Fault
from trajload.checkpoint.store import Store

__all__ = ["Damages", "damage", "files_of", "make_store"]

STEPS = (10, 20, 30, 40)

Newest = Callable[[Path], tuple[Commit | None, list[Fault]]]


def make_store(root: Path) -> Store:
    """Make a store of four checkpoints; the newest shares a file with the two before it, and none with the oldest."""
    board = Board()
    Player(root, board).play([("save", STEPS[0])])
    player = Player(root, board)
    player.refers = False
    player.play([("save", STEPS[1])])
    player.refers = True
    player.play([("save", step) for step in STEPS[2:]])
    board.close()
    return Store(root)


def files_of(store: Store, commit: Commit) -> dict[str, set[int]]:
    """Return every file that a checkpoint consists of, with the steps of all checkpoints that need it."""
    needed: dict[str, set[int]] = {}
    for other in store.commits():
        paths = [f"commits/{other.seq:010d}.json", *(part.path for part in other.parts)]
        for part in other.parts:
            paths += [entry.path for entry in store.part(other, part.rank).files.values()]
        for path in paths:
            needed.setdefault(path, set()).add(other.step)
    return {path: steps for path, steps in needed.items() if commit.step in steps}


@dataclass
class Damages:
    """What was done, and what of it passed."""

    num_flips: int = 0
    num_cuts: int = 0
    undetected: list[str] = field(default_factory=list)
    """The damaged checkpoint was selected all the same."""
    astray: list[str] = field(default_factory=list)
    """It was noticed, but another checkpoint was selected than the newest whole one, or none was named as damaged."""


def damage(
    root: Path,
    num_flips: int,
    cut_every: int,
    seed: int = 0,
    newest: Newest | None = None,
) -> Damages:
    """Do one damage after the other to the newest checkpoint of a store made by `make_store`, each time repaired again.

    Args:
        root: The store.
        num_flips: So many single bits, spread over all files of the checkpoint.
        cut_every: Each file is cut to each multiple of so many bytes below its size, and by its last byte.
        seed: Of the choice of bits.
        newest: How the newest checkpoint is found; None for a store's own way.
    """
    find: Newest = newest or (lambda folder: Store(folder).newest(verify="full"))
    store = Store(root)
    target, _ = store.newest()
    assert target is not None and target.step == STEPS[-1]
    files, found, draw = files_of(store, target), Damages(), random.Random(seed)
    paths = sorted(files)
    for number in range(num_flips):
        path = paths[number % len(paths)]
        data = bytearray((root / path).read_bytes())
        bit = draw.randrange(len(data) * 8)
        data[bit // 8] ^= 1 << bit % 8
        found.num_flips += 1
        _try(root, path, bytes(data), files[path], f"bit {bit} of {path}", find, found)
    for path in paths:
        size = (root / path).stat().st_size
        for length in sorted({*range(0, size, cut_every), size - 1}):
            found.num_cuts += 1
            _try(root, path, (root / path).read_bytes()[:length], files[path], f"{path} cut to {length}", find, found)
    return found


def _try(
    root: Path,
    path: str,
    data: bytes,
    hit: set[int],
    what: str,
    newest: Newest,
    found: Damages,
) -> None:
    whole = (root / path).read_bytes()
    (root / path).write_bytes(data)
    try:
        commit, faults = newest(root)
        wanted = max((step for step in STEPS if step not in hit), default=None)
        if commit is not None and commit.step in hit:
            found.undetected.append(what)
        elif (None if commit is None else commit.step) != wanted or not faults:
            found.astray.append(f"{what}: got {commit and commit.step}, expected {wanted}; faults {faults}")
    finally:
        (root / path).write_bytes(whole)
