"""Records a scenario once and judges every state that a power cut could have left of it.

Most states are judged in memory, by the store's own rules over a `Medium` that is the modelled tree; a sample of them is
laid out in a real folder, opened by a real `Store`, and worked on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crashlab import judge
from crashlab.board import Board
from crashlab.mutants import Mutant
from crashlab.recorder import Op, Recorder
from crashlab.scenario import Player
from crashlab.shelf import Shelf
from crashlab.states import State, states
from crashlab.trees import TreeReader

from trajload.checkpoint.store import Store

__all__ = ["Recording", "Verdict", "judge_mutant", "judge_states", "record"]

_WEAKENING = ("retain", "unpin")
"""Notes after which less is owed; at the operation where one is made, the state before it is judged by what was owed."""


class _MarkedBoard(Board):
    """A board that also says how many operations had been made when a note was."""

    def __init__(self, ops: list[Op]) -> None:
        super().__init__()
        self._ops, self.marks = ops, list[int]()

    def note(self, kind: str, **values: Any) -> None:
        super().note(kind, **values)
        self.marks.append(len(self._ops))


@dataclass(frozen=True)
class Recording:
    """Operations of a scenario below its folder, and its notes with their places."""

    ops: list[Op]
    notes: list[tuple[str, dict[str, Any]]]
    marks: list[int]
    store: str
    """Where the store is, below the folder."""

    def notes_by(self, prefix: int) -> list[tuple[str, dict[str, Any]]]:
        """Return what had been noted when `prefix` operations had been made."""
        return [
            note
            for note, mark in zip(self.notes, self.marks, strict=True)
            if mark < prefix or (mark == prefix and note[0] not in _WEAKENING)
        ]


def record(folder: Path, actions: Sequence[Any], open_store: Callable[[Path], Store] = Store) -> Recording:
    """Carry out `actions` on the store `folder/root` and return all that was changed on the way."""
    folder.mkdir(parents=True)
    recorder = Recorder(folder)
    board = _MarkedBoard(recorder.ops)
    store = "runs/exp1/checkpoints"
    try:
        with recorder.recording():
            Player(folder / store, board, open_store).play(actions)
        return Recording(recorder.ops, board.notes(), board.marks, store)
    finally:
        board.close()


@dataclass
class Verdict:
    """What was found among the states."""

    num_states: int = 0
    num_laid_out: int = 0
    """So many of them in a real folder."""
    violations: list[tuple[State, list[str]]] = field(default_factory=list)
    seconds: float = 0.0

    def told(self, most: int = 3) -> str:
        """Return the first violations in words."""
        return "; ".join(
            f"after {state.prefix} operations, without {list(state.dropped)}: {texts[:2]}"
            for state, texts in self.violations[:most]
        )


def judge_states(
    recording: Recording,
    folder: Path,
    most_per_prefix: int,
    *,
    seed: int = 0,
    every: int = 1,
    lay_out_every: int = 100,
    enough: int | None = None,
    sweeps: bool = True,
    open_store: Callable[[Path], Store] = Store,
) -> Verdict:
    """Judge the states of a recording.

    Args:
        recording: What to take apart.
        folder: New folder to lay states out in; fastest in memory.
        most_per_prefix: At most about so many states for each prefix.
        seed: Of the choice where there are more.
        every: Only each so-many-th prefix.
        lay_out_every: Each so-many-th state is laid out in the folder, read by a real store, and a checkpoint is saved.
        enough: Stop after so many violations.
        sweeps: Whether a sweep is expected to leave nothing behind.
        open_store: What reads in the folder.
    """
    shelf, verdict, trees = Shelf(folder), Verdict(), TreeReader()
    root = folder / recording.store
    start = time.perf_counter()
    seen: set[object] = set()
    prefix, notes, owed = -1, list[tuple[str, dict[str, Any]]](), judge.promised([])
    for state in states(recording.ops, most_per_prefix, seed, every, set(recording.marks)):
        if state.prefix != prefix:
            prefix, notes = state.prefix, recording.notes_by(state.prefix)
            owed = judge.promised(notes)
        key = (frozenset(state.tree.items()), len(notes))
        if key in seen:
            continue  # the state before the last operation, which was lost
        seen.add(key)
        verdict.num_states += 1
        found: list[str] = []
        if lay_out_every > 1:
            found += trees.check(state.tree, recording.store, owed[0])
            found += trees.check(state.tree, recording.store + "-far", owed[1])
            below = recording.store + "-exports/"
            there = {path[len(below) :]: data for path, data in state.tree.items() if path.startswith(below)}
            found += judge.export_faults(there, notes)
        if verdict.num_states % lay_out_every == 0 and notes:
            verdict.num_laid_out += 1
            shelf.show(state.tree)
            found += judge.violations(root, notes, open_store)
            if open_store is Store:
                found += judge.goes_on(root, sweeps=sweeps)
        if found:
            verdict.violations.append((state, found))
            if enough is not None and len(verdict.violations) >= enough:
                break
    verdict.seconds = time.perf_counter() - start
    return verdict


def judge_mutant(mutant: Mutant, recording: Recording, folder: Path) -> Verdict:
    """Judge what a broken protocol has left, up to its first fault. One that reads in its own way is asked in a folder."""
    lay_out_every = 100 if mutant.reader is Store else 1
    open_store = mutant.open_to_read() if mutant.reader is not Store else Store
    return judge_states(recording, folder, 8, lay_out_every=lay_out_every, enough=1, open_store=open_store)
