"""Disks that fail, lack something, or tell what they did."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from trajload.checkpoint.disk import Disk

OPERATIONS = (
    "mkdir",
    "rmdir",
    "fsync_dir",
    "create",
    "write",
    "fsync",
    "close",
    "link",
    "rename",
    "unlink",
    "open_lock",
    "flock",
    "note",
)


class WatchedDisk(Disk):
    """Notes its operations, waits for no hardware, and refuses one of them, or all of some kinds."""

    def __init__(self, *, fail_at: int = 0, error: int = errno.EIO, fail_all: tuple[str, ...] = ()) -> None:
        self.log: list[tuple[str, str]] = []
        self.fail_at = fail_at
        self.error = error
        self.fail_all = fail_all

    def _seen(self, operation: str, path: Any) -> None:
        self.log.append((operation, str(path)))
        if len(self.log) == self.fail_at or operation in self.fail_all:
            raise OSError(self.error, os.strerror(self.error), str(path))


def _watched(name: str) -> Any:
    plain = getattr(Disk, name)

    def operation(self: WatchedDisk, *args: Any, **kwargs: Any) -> Any:
        path = next(arg for arg in args if isinstance(arg, Path))
        if name == "close":  # the descriptor is gone in any case, as it is with the system's own
            plain(self, *args, **kwargs)
            return self._seen(name, path)
        self._seen(name, path)
        if name in ("fsync", "fsync_dir"):
            return None  # what the hardware does is not looked at here, and takes milliseconds
        return plain(self, *args, **kwargs)

    return operation


for _name in OPERATIONS:
    setattr(WatchedDisk, _name, _watched(_name))
