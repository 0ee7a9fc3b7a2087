"""Disks that refuse: the N-th operation fails as a full, broken or read-only one does, once or from then on."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trajload.checkpoint.disk import Disk

__all__ = ["ERRORS", "OPERATIONS", "FailingDisk"]

ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EDQUOT", "EROFS")}

OPERATIONS = (
    "mkdir", "rmdir", "fsync_dir", "create", "write", "fsync", "close", "sync_file", "link", "rename", "unlink",
    "open_lock", "flock", "note",
)  # fmt: skip
"""Every operation of a disk; a test compares the list with the class."""


class FailingDisk(Disk):
    """A disk whose operation number `at` (from 1) fails with `code`.

    Args:
        at: 0 for never.
        code: An errno.
        lasting: Every later operation fails too, until `repair`.

    Attributes:
        log: (operation, path, whether it failed) of everything asked of the disk.
    """

    def __init__(self, at: int = 0, code: int = errno.EIO, lasting: bool = False) -> None:
        self.at, self.code, self.lasting = at, code, lasting
        self.log: list[tuple[str, str, bool]] = []

    def repair(self) -> None:
        """Fail no more."""
        self.at = 0

    def _fails(self, name: str, path: Path) -> bool:
        number = len(self.log) + 1
        fails = bool(self.at) and (number >= self.at if self.lasting else number == self.at)
        self.log.append((name, str(path), fails))
        return fails


def _guarded(name: str) -> Callable[..., Any]:
    real = getattr(Disk, name)

    @functools.wraps(real)
    def operation(self: FailingDisk, *arguments: Any, **options: Any) -> Any:
        path = next(argument for argument in arguments if isinstance(argument, Path))
        if self._fails(name, path):
            if name == "close":
                real(self, *arguments)  # the descriptor is gone even so
            if name == "write":
                os.write(arguments[0], memoryview(arguments[2]).cast("B")[:1])  # what fails may have been done in part
            raise OSError(self.code, os.strerror(self.code), str(path))
        return real(self, *arguments, **options)

    return operation


for _name in OPERATIONS:
    setattr(FailingDisk, _name, _guarded(_name))
