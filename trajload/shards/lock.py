"""One Writer at a time for a folder, by a lock that dies with its process."""

from __future__ import annotations

import fcntl
import os

from trajload.errors import ConfigError
from trajload.types import PathLikeStr

__all__ = ["FolderLock"]


class FolderLock:
    """An advisory lock on the folder itself, so that no lock file is left behind by a kill."""

    def __init__(self, path: PathLikeStr) -> None:
        self._fd: int | None = None
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as err:
            raise ConfigError(f"path={os.fspath(path)!r} is no folder that can be used: {err.strerror}.") from err
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(
                f"path={os.fspath(path)!r} is being written by another Writer: wait for it to close."
            ) from None
        except OSError:
            # Some network file systems cannot lock; writing there stays possible, unguarded.
            self.release()

    def release(self) -> None:
        """Give the folder free. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.release()
