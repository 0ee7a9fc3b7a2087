"""Lets one operation of the disk after the other fail, and says whether the store stays what it promises to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crashlab import judge
from crashlab.board import Board
from crashlab.faults import ERRORS, FailingDisk
from crashlab.scenario import Player
from crashlab.sweeps import Tally, remove_stores

from trajload.checkpoint.disk import Disk
from trajload.checkpoint.store import Store
from trajload.errors import TrajloadError

__all__ = ["num_operations", "refuse_everywhere"]

_SYNCS = ("fsync", "sync_file")


def _play(root: Path, disk: Disk, actions: Sequence[Any], board: Board) -> str | None:
    """Carry out `actions` as far as the disk lets; return what came out that should not have."""
    try:
        player = Player(root, board, lambda folder: Store(folder, disk=disk))
    except TrajloadError as error:
        board.note("error", action="open", type=type(error).__name__, text=str(error))
        return None
    except Exception as error:
        return f"opening raised {type(error).__name__}: {error}"
    try:
        player.play(actions, (TrajloadError,))
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return None


def num_operations(folder: Path, actions: Sequence[Any]) -> int:
    """Return how many operations the actions take when nothing fails."""
    disk, board = FailingDisk(), Board()
    problem = _play(folder / "counted", disk, actions, board)
    assert problem is None, problem
    board.close()
    remove_stores(folder / "counted")
    return len(disk.log)


def _sync_faults(disk: FailingDisk, root: Path) -> list[str]:
    """Return files that were synced again after a sync of them had failed, and generations that went on."""
    found: list[str] = []
    committed = {commit.generation for commit in Store(root).commits()}
    for number, (operation, path, failed) in enumerate(disk.log):
        if not failed or operation not in _SYNCS:
            continue
        again = [name for name, other, _ in disk.log[number + 1 :] if other == path and name in _SYNCS]
        if again and not (operation == "sync_file" and number + 1 < len(disk.log) and again == ["fsync"]):
            found.append(f"{path} was synced again after its sync had failed")
        found += [f"{name} was committed though {path} was not synced" for name in committed if f"/{name}/" in path]
    return found


def refuse_everywhere(
    folder: Path,
    actions: Sequence[Any],
    error: str,
    points: Sequence[int],
    *,
    lasting: bool = False,
    make_disk: Callable[[int, int, bool], FailingDisk] = FailingDisk,
) -> Tally:
    """Let operation number n fail for each n in `points`, and judge what was said and what is left.

    Args:
        folder: For the stores.
        actions: What is done.
        error: A key of `faults.ERRORS`.
        points: Numbers of operations, from 1.
        lasting: All later ones fail too; then the store is also read while they still do.
        make_disk: Makes the disk of (number, errno, lasting).
    """
    tally = Tally()
    for at in points:
        root, disk, board = folder / f"{error}-{at}", make_disk(at, ERRORS[error], lasting), Board()
        problem = _play(root, disk, actions, board)
        notes = board.notes()
        board.close()
        failed = next(((name, path) for name, path, fails in disk.log if fails), None)
        if failed is None:
            tally.missed += 1
            remove_stores(root)
            continue
        tally.points[failed[0]] += 1
        name = Path(failed[1]).name
        where = f"{'lasting ' if lasting else ''}{error} from {failed[0]} of {name} (operation {at})"
        found = [] if problem is None else [problem]
        if lasting and root.exists():
            found += _readable(root, disk, notes)
        disk.repair()
        found += judge.violations(root, notes)
        if root.exists():
            found += _sync_faults(disk, root)
        found += judge.goes_on(root)
        tally.violations += [f"{where}: {text}" for text in found]
        remove_stores(root)
    return tally


def _readable(root: Path, disk: FailingDisk, notes: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return what hinders reading the last checkpoint while the disk takes no change."""
    near, _ = judge.promised(notes)
    if near.last is None:
        return []
    try:
        newest, _ = Store(root, disk=disk).newest(verify="full")
    except Exception as error:
        return [f"reading meanwhile raised {type(error).__name__}: {error}"]
    return [] if newest is not None and newest.step >= near.last else [f"reading meanwhile gives {newest}"]
