"""A folder that is made to hold one modelled state after the other, changing only what differs between them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from crashlab.states import Tree

__all__ = ["Shelf"]


class Shelf:
    """A folder whose content is set as a whole; `root` is where a store finds it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        self._shown: Tree = {}

    def show(self, tree: Tree) -> None:
        """Make the folder hold exactly `tree`."""
        self._notice()
        for path in sorted(self._shown.keys() - tree.keys(), key=len, reverse=True):
            self._remove(path)
        for path, data in sorted(tree.items()):
            if path in self._shown:
                if self._shown[path] == data:
                    continue
                self._remove(path)
            if data is None:
                os.mkdir(self.root / path)
            else:
                (self.root / path).write_bytes(data)
        self._shown = dict(tree)

    def _remove(self, path: str) -> None:
        full = self.root / path
        if full.is_dir():
            shutil.rmtree(full)
        else:
            full.unlink(missing_ok=True)

    def _notice(self) -> None:
        """See what whoever read the folder has made or changed in it meanwhile."""
        prefix = len(str(self.root)) + 1
        found: set[str] = set()
        for folder, folders, files in os.walk(self.root):
            below = folder[prefix:] + "/" if len(folder) >= prefix else ""
            found.update(below + name for name in folders)
            for name in files:
                found.add(below + name)
                data = self._shown.get(below + name)
                if data is not None and os.path.getsize(f"{folder}/{name}") != len(data):
                    self._shown[below + name] = b"changed"
        for path in self._shown.keys() - found:
            del self._shown[path]
        for path in found - self._shown.keys():
            self._shown[path] = None if (self.root / path).is_dir() else b"found"
