"""Turns what the system says into the package's errors."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from trajload.errors import CheckpointAbortedError, CheckpointError

__all__ = ["aborting", "reason", "refusing"]

_ADVICE = {
    errno.ENOSPC: "The disk is full: free space, or keep fewer checkpoints.",
    errno.EDQUOT: "The quota is used up: free space, or keep fewer checkpoints.",
    errno.EROFS: "The file system is mounted read-only: choose another folder, or look for disk errors in the system log.",
    errno.EIO: "The device failed: look at the system log, and do not trust this disk.",
    errno.EACCES: "Permission is missing: check the folder's owner and mode.",
    errno.EPERM: "Permission is missing: check the folder's owner and mode.",
    errno.ENOENT: "Somebody removed it while it was being used.",
    **dict.fromkeys(
        (errno.EISDIR, errno.ENOTDIR, errno.ELOOP),
        "Something else stands where the store has a file or folder of its own: look what it is, and move it away.",
    ),
}


def reason(err: OSError) -> str:
    """Return what the system said, in its words and as a symbol."""
    symbol = errno.errorcode.get(err.errno or 0, "")
    words = err.strerror or (os.strerror(err.errno) if err.errno else str(err))
    return f"{words} [{symbol}]" if symbol else words


def _told(what: str, err: OSError) -> str:
    """Return what failed, of which file, and what the system said."""
    at = err.filename2 or err.filename  # of a link and a rename, where it leads
    name = os.fsdecode(at) if isinstance(at, (str, bytes, os.PathLike)) else ""
    is_told = any(name.endswith(said) for said in re.findall(r"'([^']+)'", what))
    return f"{what} failed{f' at {name!r}' if name and not is_told else ''}: {reason(err)}."


@contextlib.contextmanager
def aborting(what: str) -> Iterator[None]:
    """Raise CheckpointAbortedError where the system refuses: the save is over, and what was committed before stands."""
    try:
        yield
    except OSError as err:
        raise CheckpointAbortedError(
            f"{_told(what, err)} Nothing was committed, and earlier checkpoints are untouched. "
            f"{_ADVICE.get(err.errno or 0, '')}".rstrip()
        ) from err


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Raise CheckpointError where the system refuses something that is no save."""
    try:
        yield
    except OSError as err:
        raise CheckpointError(f"{_told(what, err)} {_ADVICE.get(err.errno or 0, '')}".rstrip()) from err
