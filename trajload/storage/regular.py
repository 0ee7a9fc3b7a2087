"""Opens regular files only: a pipe or device in a file's place would be waited for without end."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

from trajload.types import PathLikeStr

__all__ = ["check_regular", "open_regular", "open_regular_fd"]

_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


def check_regular(path: PathLikeStr, status: os.stat_result) -> os.stat_result:
    """Return `status`, or raise OSError whose `strerror` says what stands in the file's place."""
    if stat.S_ISREG(status.st_mode):
        return status
    kind = next((words for is_kind, words in _KINDS if is_kind(status.st_mode)), "a device")
    raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", os.fspath(path))


def open_regular_fd(path: PathLikeStr) -> int:
    """Return a descriptor of the regular file at `path` for reading; never waits.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    # Without O_NONBLOCK the open itself waits for a pipe's other end; regular files take no notice of it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        check_regular(path, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def open_regular(path: PathLikeStr) -> BinaryIO:
    """Return the regular file at `path`, opened for reading as binary; see `open_regular_fd`."""
    return os.fdopen(open_regular_fd(path), "rb")
