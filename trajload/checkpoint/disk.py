"""Every change that the checkpoint store makes to files, each as one named operation.

Nothing else in the package changes a file, so a test that replaces `Disk` sees, records, refuses or leaves out any of
them. Reading goes through plain `open`. Operations raise OSError; what they mean for a save is decided above.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

__all__ = [
    "MAX_PIECE_BYTES",
    "NO_LOCKS",
    "UNSUPPORTED",
    "Bytes",
    "Disk",
    "make_folders",
    "open_regular",
    "settle_ancestors",
]

Bytes: TypeAlias = "bytes | bytearray | memoryview"

MAX_PIECE_BYTES = 8 << 20
"""The most bytes that one write gets: what a kill tears is small, and hashing keeps pace with writing."""

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF})
"""What file systems say that cannot do something, such as sync a folder."""

NO_LOCKS = (UNSUPPORTED - {errno.EBADF}) | {errno.ENOLCK}

_FULL_FSYNC = 51
"""F_FULLFSYNC of macOS, where fsync leaves data in the drive's cache."""


class Disk:
    """The operating system's file operations, with durable ones told from others. Thread-safe, without state."""

    # ---- folders ----

    def mkdir(self, path: Path) -> None:
        """Make one folder; FileExistsError where something has that name."""
        os.mkdir(path, 0o755)

    def rmdir(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def fsync_dir(self, path: Path) -> None:
        """Bring the names in a folder to the disk; without it a new file may be lost with the power."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # ---- new files ----

    def create(self, path: Path) -> int:
        """Return a descriptor of a new, empty file; FileExistsError where something has that name."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, fd: int, path: Path, piece: Bytes) -> None:
        """Append a piece, all of it. `path` is told for those who watch."""
        view = memoryview(piece).cast("B")
        while view:
            written = os.write(fd, view)
            if not written:
                raise OSError(errno.EIO, "nothing was written", os.fspath(path))
            view = view[written:]

    def fsync(self, fd: int, path: Path) -> None:
        """Bring the content of an open file to the disk. An error is final: the kernel forgets pages it could not write."""
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(fd, _FULL_FSYNC)
        else:
            os.fsync(fd)

    def close(self, fd: int, path: Path) -> None:
        """Close a descriptor; network file systems tell of failed writes here."""
        os.close(fd)

    def sync_file(self, path: Path) -> None:
        """Bring the content of a file that someone else wrote to the disk."""
        fd = open_regular(path)
        try:
            self.fsync(fd, path)
        finally:
            os.close(fd)

    # ---- names ----

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError where something has that name, and nothing is changed."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of what had it."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Take a file's name away."""
        os.unlink(path)

    # ---- locks ----

    def open_lock(self, path: Path) -> int:
        """Return a descriptor of a lock file, which is made where it is absent."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)

    def flock(self, fd: int, path: Path, *, patience_s: float = 0.0) -> bool:
        """Take the lock of an open file, waiting at most `patience_s`; False where another holds it. A kill releases it."""
        import fcntl

        until = time.monotonic() + patience_s
        while True:
            is_last_look = time.monotonic() >= until
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as err:
                if err.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                    raise
            else:
                return True
            if is_last_look:
                return False
            time.sleep(0.01)

    def note(self, fd: int, path: Path, text: bytes) -> None:
        """Replace the first line of a lock file. For people and messages only: it may be torn, and is never relied on.

        A kill leaves the old line or the new one, and an error none: an old one would name somebody else.
        """
        try:
            os.pwrite(fd, text, 0)
        except OSError:
            os.ftruncate(fd, 0)
            raise
        os.ftruncate(fd, len(text))


def make_folders(folder: Path, disk: Disk) -> None:
    """Make a folder and those above it as far as they are absent, each durable in the one above it where that can be had."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process makes the same one
            disk.mkdir(made)
        with contextlib.suppress(OSError):  # asked for once more by `settle_ancestors`
            disk.fsync_dir(made.parent)


def settle_ancestors(path: Path, disk: Disk) -> None:
    """Make the folders above a path durable: whoever made them may have been killed before doing so."""
    device = os.stat(path).st_dev
    for folder in path.parents:
        try:
            if os.stat(folder).st_dev != device:
                return
            disk.fsync_dir(folder)
        except PermissionError:
            continue  # not ours, so none of us made it
        except OSError:
            return


def open_regular(path: str | os.PathLike[str]) -> int:
    """Return a descriptor of the regular file at `path` for reading; never waits, as a pipe would make it.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    # As in trajload.storage, which loads NumPy: a process that lists checkpoints starts without it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status: Any = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            code, kind = errno.EINVAL, "a pipe, socket or device"
            if stat.S_ISDIR(status.st_mode):
                code, kind = errno.EISDIR, "a folder"
            raise OSError(code, f"it is {kind}, expected a regular file", os.fspath(path))
    except OSError:
        os.close(fd)
        raise
    return fd
