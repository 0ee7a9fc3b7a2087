"""Reads a store that is a modelled tree in memory, by the store's own rules: no folder, no system call.

What follows from bytes alone (a parsed record, a list of files) is remembered, since thousands of states share them.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from crashlab.judge import Promise, check
from crashlab.states import Tree

from trajload.checkpoint import catalog, identity, reader, record
from trajload.checkpoint.entries import Commit
from trajload.errors import CheckpointError

__all__ = ["TreeMedium", "TreeReader"]


class TreeMedium:
    """The reading half of a `Medium` over files in a dict."""

    durability = "modelled"

    def __init__(self, files: dict[str, bytes], folders: dict[str, list[str]], name: str) -> None:
        self.name, self._files, self._folders = name, files, folders

    def names(self, folder: str) -> list[str]:
        return sorted(self._folders.get(folder, ()))

    def read(self, path: str) -> bytes:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "not in the tree", path) from None

    def size(self, path: str) -> int:
        return len(self.read(path))

    def pieces(self, path: str) -> Iterator[bytes]:
        yield self.read(path)


class TreeReading:
    """A store in a tree, see `judge.Reading`."""

    def __init__(self, medium: TreeMedium, parts: dict[tuple[str, bytes], dict[str, str]]) -> None:
        self.name, self._medium, self._parts = medium.name, medium, parts
        uuid, _ = identity.identify(medium, create=False)  # type: ignore[arg-type]
        self._scan = catalog.scan(medium, uuid)  # type: ignore[arg-type]

    def newest(self) -> Commit | None:
        return catalog.newest(self._medium, lambda: self._scan, "full", None)[0]  # type: ignore[arg-type]

    def commits(self) -> list[Commit]:
        return self._scan.commits

    def files(self, commit: Commit, rank: int) -> dict[str, bytes]:
        key = (commit.parts[rank].digest, self._medium.read(commit.parts[rank].path))
        if key not in self._parts:
            part = reader.read_part(self._medium, commit, rank)  # type: ignore[arg-type]
            self._parts[key] = {name: entry.path for name, entry in part.files.items()}
        return {name: self._medium.read(path) for name, path in self._parts[key].items()}


class Nothing:
    """What is seen where no store has come to be yet."""

    name = "nothing"

    def newest(self) -> None:
        return None

    def commits(self) -> list[Commit]:
        return []

    def files(self, commit: Commit, rank: int) -> dict[str, bytes]:
        raise AssertionError("there are no commits")


class TreeReader:
    """Judges stores in trees. Equal trees that owe the same are judged once."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, bytes], dict[str, str]] = {}
        self._judged: dict[object, list[str]] = {}
        self._known: dict[tuple[bytes, str], tuple[dict[str, Any], str]] = {}

    def check(self, tree: Tree, store: str, promise: Promise) -> list[str]:
        """Return what is wrong with the store in folder `store` of a tree."""
        prefix = store + "/"
        below = {path[len(prefix) :]: data for path, data in tree.items() if path.startswith(prefix)}
        key = (frozenset(below.items()), store, promise.last, *promise.must.items(), *promise.tried)
        if key not in self._judged:
            with self._remembering():
                self._judged[key] = check(lambda: self._reading(below, store), promise)
        return self._judged[key]

    def _reading(self, below: Tree, store: str) -> TreeReading | Nothing:
        files = {path: data for path, data in below.items() if data is not None}
        folders: defaultdict[str, list[str]] = defaultdict(list)
        for path in below:
            folder, _, name = path.rpartition("/")
            folders[folder].append(name)
        try:
            return TreeReading(TreeMedium(files, folders, store), self._parts)
        except CheckpointError:
            if any(path.startswith("commits/0") for path in files):
                raise
            return Nothing()

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Parse equal bytes once."""

        def decode(data: bytes, kind: str) -> tuple[dict[str, Any], str]:
            if (data, kind) not in self._known:
                self._known[data, kind] = record.decode_record(data, kind)
            return self._known[data, kind]

        with (
            mock.patch.object(catalog, "decode_record", decode),
            mock.patch.object(reader, "decode_record", decode),
            mock.patch.object(identity, "decode_record", decode),
        ):
            yield
