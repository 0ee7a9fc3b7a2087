"""Files that appear whole or not at all: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from trajload.types import PathLikeStr

__all__ = ["TEMP_SUFFIX", "fsync_dir", "fsync_file", "publish", "write_atomic"]

TEMP_SUFFIX = ".tmp"
"""Ends the name of every file that is not yet part of a dataset; what a killed writer may leave behind."""


def fsync_file(path: PathLikeStr) -> None:
    """Bring the content of the file at `path` to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_dir(path: PathLikeStr) -> None:
    """Bring the names in a folder to the disk; without it a rename may be lost with the power."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(path: PathLikeStr) -> None:
    """Give the finished, synced temporary file of `path` its name. The caller syncs the folder afterwards."""
    os.replace(os.fspath(path) + TEMP_SUFFIX, path)


def write_atomic(path: PathLikeStr, data: bytes) -> None:
    """Write `data` to `path` so that a kill at any moment leaves the old file or the new one."""
    temp = os.fspath(path) + TEMP_SUFFIX
    try:
        with open(temp, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        publish(path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise
    fsync_dir(Path(path).parent)
