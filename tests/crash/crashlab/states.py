"""Every state that a power cut may leave, by a model: what was synced is there, of the rest any part may be missing.

Taken are: each prefix of the operations x any set of folder entries made, dropped or moved since the folder's last sync
x any set of 4 KiB blocks written since the file's last sync (missing: the old bytes, or zeros where the file had none).
That is more than any one file system does; a protocol that survives it does not lean on how ext4 orders its journal.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from crashlab.recorder import Op

__all__ = ["BLOCK", "Model", "State", "states"]

BLOCK = 4096

Tree = dict[str, bytes | None]
"""Path below the root: bytes of a file, None for a folder."""


@dataclass(frozen=True)
class State:
    """What is on the disk after a cut that followed the first `prefix` operations."""

    prefix: int
    tree: Tree
    dropped: tuple[str, ...]


@dataclass
class _File:
    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # blocks; a negative offset -1 - n cuts to n bytes

    def write(self, op: Op) -> None:
        start = op.offset
        while start < op.offset + len(op.data):
            end = min((start // BLOCK + 1) * BLOCK, op.offset + len(op.data))
            self.pending.append((start, op.data[start - op.offset : end - op.offset]))
            start = end

    def bytes_without(self, dropped: frozenset[int], sized: bool) -> bytes:
        """Return the content if the pending writes numbered in `dropped` were lost; `sized`: the size was kept all the same."""
        if not self.pending:
            return self.durable
        data = bytearray(self.durable)
        for number, (offset, piece) in enumerate(self.pending):
            if offset < 0:
                if number not in dropped:
                    del data[-1 - offset :]
                continue
            end = offset + len(piece)
            if len(data) < (end if number not in dropped or sized else 0):
                data.extend(bytes(end - len(data)))
            if number not in dropped:
                data[offset:end] = piece
        return bytes(data)


@dataclass
class _Folder:
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Op] = field(default_factory=list)

    def entries_without(self, dropped: frozenset[int]) -> dict[str, int]:
        """Return the entries if the pending changes numbered in `dropped` were lost."""
        entries = dict(self.durable)
        for number, op in enumerate(self.pending):
            if number in dropped:
                continue
            if op.kind == "make":
                entries[op.name] = op.node
            else:
                entries.pop(op.name, None)
                if op.kind == "move":
                    entries[op.to] = op.node
        return entries


class Model:
    """The disk and the cache above it, fed with one operation after the other."""

    def __init__(self) -> None:
        self.folders: dict[int, _Folder] = {0: _Folder()}
        self.files: dict[int, _File] = {}
        self._whole: dict[int, dict[str, int] | bytes] = {}  # nodes as they are if nothing is lost

    def newest_change(self, folder: int) -> tuple[int, int]:
        """Return the last change of a folder that a cut may lose."""
        return folder, len(self.folders[folder].pending) - 1

    def apply(self, op: Op) -> None:
        """Carry out one operation."""
        self._whole.pop(op.parent if op.kind in ("make", "drop", "move") else op.node, None)
        if op.kind in ("make", "drop", "move"):
            if op.kind == "make" and op.node not in self.folders and op.node not in self.files:
                if op.folder:
                    self.folders[op.node] = _Folder()
                else:
                    self.files[op.node] = _File()
            self.folders[op.parent].pending.append(op)
        elif op.kind == "write":
            self.files[op.node].write(op)
        elif op.kind == "cut":
            self.files[op.node].pending.append((-1 - op.offset, b""))
        elif op.node in self.folders:
            folder = self.folders[op.node]
            self.folders[op.node] = _Folder(folder.entries_without(frozenset()))
        else:
            self.files[op.node] = _File(self.files[op.node].bytes_without(frozenset(), False))

    def pending(self) -> list[tuple[int, int]]:
        """Return (node, number) of every change that a cut may lose, of what can still be reached."""
        reached = self._reached()
        found = [
            (node, i)
            for node, item in sorted(self.folders.items())
            if node in reached
            for i in range(len(item.pending))
        ]
        return found + [
            (node, i) for node, item in sorted(self.files.items()) if node in reached for i in range(len(item.pending))
        ]

    def _reached(self) -> set[int]:
        """Return the nodes that some choice of lost changes leaves in the tree."""
        reached, todo = set(), [0]
        while todo:
            node = todo.pop()
            if node in reached:
                continue
            reached.add(node)
            if node in self.folders:
                folder = self.folders[node]
                todo += [*folder.durable.values(), *(op.node for op in folder.pending if op.kind != "drop")]
        return reached

    def tree(self, dropped: frozenset[tuple[int, int]], sized: bool = False) -> Tree:
        """Return what is left if the changes in `dropped` were lost; `sized`: lost blocks read as zeros, else files are short."""
        lost: dict[int, set[int]] = {}
        for node, number in dropped:
            lost.setdefault(node, set()).add(number)
        tree: Tree = {}
        todo = [("", 0)]
        while todo:
            path, node = todo.pop()
            for name, child in self._entries(node, lost).items():
                below = f"{path}/{name}" if path else name
                if child in self.folders:
                    tree[below] = None
                    todo.append((below, child))
                else:
                    tree[below] = self._bytes(child, lost, sized)
        return tree

    def _entries(self, node: int, lost: dict[int, set[int]]) -> dict[str, int]:
        if node in lost:
            return self.folders[node].entries_without(frozenset(lost[node]))
        if node not in self._whole:
            self._whole[node] = self.folders[node].entries_without(frozenset())
        return self._whole[node]  # type: ignore[return-value]

    def _bytes(self, node: int, lost: dict[int, set[int]], sized: bool) -> bytes:
        if node in lost:
            return self.files[node].bytes_without(frozenset(lost[node]), sized)
        if node not in self._whole:
            self._whole[node] = self.files[node].bytes_without(frozenset(), False)
        return self._whole[node]  # type: ignore[return-value]

    def describe(self, change: tuple[int, int]) -> str:
        """Return one pending change in words."""
        node, number = change
        if node in self.folders:
            op = self.folders[node].pending[number]
            return f"{op.kind} {op.name}{' to ' + op.to if op.to else ''}"
        offset, piece = self.files[node].pending[number]
        return f"write of {len(piece)} bytes at {offset} of node {node}"


def _choices(
    pending: Sequence[tuple[int, int]], most: int, draw: random.Random
) -> Iterator[frozenset[tuple[int, int]]]:
    """Return sets of lost changes: all of them if there are at most `most`, else the telling ones and a sample."""
    if 1 << len(pending) <= most:
        for mask in range(1 << len(pending)):
            yield frozenset(change for bit, change in enumerate(pending) if mask >> bit & 1)
        return
    yield frozenset()
    yield frozenset(pending)
    for change in pending:
        yield frozenset([change])
        yield frozenset(pending) - {change}
    for _ in range(most - 2 - 2 * len(pending)):
        likely = draw.choice((0.2, 0.5, 0.8))
        yield frozenset(change for change in pending if draw.random() < likely)


def states(
    ops: Sequence[Op], most_per_prefix: int, seed: int = 0, every: int = 1, told: Container[int] | None = None
) -> Iterator[State]:
    """Return the states after each prefix of `ops`, none twice of the same prefix.

    Args:
        ops: What was recorded.
        most_per_prefix: About so many states of one prefix, where there are more.
        seed: Of the choice.
        every: Only each so-many-th prefix.
        told: Prefixes by which the process had been told something new; None for any. After the others, states without
            the last operation are left out, and those after a sync: they are states of the prefix before, too.
    """
    draw = random.Random(seed)
    model = Model()
    for prefix in range(len(ops) + 1):
        if prefix:
            model.apply(ops[prefix - 1])
        if prefix % every and prefix != len(ops):
            continue
        pending = model.pending()
        if prefix and every == 1 and told is not None and prefix not in told:
            last = ops[prefix - 1]
            if last.kind == "sync":
                continue
            if last.kind in ("make", "drop", "move"):
                pending = [change for change in pending if change != model.newest_change(last.parent)]
        seen = set()
        for dropped in _choices(pending, most_per_prefix, draw):
            loses_data = any(node in model.files for node, _ in dropped)
            for sized in (False, True) if loses_data else (False,):
                tree = model.tree(dropped, sized)
                key = frozenset(tree.items())
                if key not in seen:
                    seen.add(key)
                    yield State(prefix, tree, tuple(model.describe(change) for change in sorted(dropped)))
