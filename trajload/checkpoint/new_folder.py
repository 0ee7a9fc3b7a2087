"""A folder that appears at once and whole, or not at all: for what no commit record vouches for, such as exports."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from trajload.checkpoint.disk import MAX_PIECE_BYTES, NO_LOCKS, UNSUPPORTED, Bytes, Disk, make_folders, settle_ancestors
from trajload.checkpoint.failures import refusing
from trajload.errors import CheckpointError

__all__ = ["publish_folder"]

_PATIENCE_S = 10.0


def publish_folder(target: Path, files: Mapping[str, Iterable[Bytes]], disk: Disk | None = None) -> int:
    """Write files into a folder of another name, make them durable, and give it its name; return how many bytes they have.

    The other name is `.<name>.<nonce>.tmp`, locked as long as its writer lives: what killed ones have left is removed here.

    Args:
        target: Absent, or an empty folder. Folders above it are made.
        files: Content by plain name; a piece is used up before the next is asked for.
        disk: Does all changes to files.

    Raises:
        CheckpointError: The system refused. The folder is not there, or is whole and its name may not outlive a power cut,
            which the message says.
    """
    disk = disk or Disk()
    with refusing(f"export to {str(target)!r}"):
        make_folders(target.parent, disk)
        making, lock = _begin(target, disk)
        try:
            total = sum(_write(disk, making / name, pieces) for name, pieces in files.items())
            _sync(disk, making)
            disk.rename(making, target)  # in the place of an empty one
        except BaseException:
            with contextlib.suppress(OSError):
                _remove(making, disk)
            raise
        finally:
            os.close(lock)
    with refusing(f"export to {str(target)!r} is whole, but making its name durable"):
        _sync(disk, target.parent)
        settle_ancestors(target.parent, disk)
    return total


def _begin(target: Path, disk: Disk) -> tuple[Path, int]:
    """Return a new folder and the descriptor that holds its lock; what is left of dead writers goes."""
    with _locked(target.parent, disk) as alone:
        if alone:
            _remove_left(target, disk)
        making = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        disk.mkdir(making)
        try:
            fd = os.open(making, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _take(fd, making, disk)
            except BaseException:
                os.close(fd)
                raise
        except BaseException:
            with contextlib.suppress(OSError):
                disk.rmdir(making)
            raise
    return making, fd


@contextlib.contextmanager
def _locked(folder: Path, disk: Disk) -> Iterator[bool]:
    """Keep others from beginning, or removing what was left, in a folder; False where there are no locks."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        got = _take(fd, folder, disk, _PATIENCE_S)
        if got is False:
            raise CheckpointError(
                f"folder {str(folder)!r} has been locked by another process for {_PATIENCE_S:g} s. Try again."
            )
        yield got is True
    finally:
        os.close(fd)


def _take(fd: int, path: Path, disk: Disk, patience_s: float = 0.0) -> bool | None:
    """Take the lock of an open folder; False where another has it, None where the file system has no locks."""
    try:
        return disk.flock(fd, path, patience_s=patience_s)
    except OSError as err:
        if err.errno not in NO_LOCKS | UNSUPPORTED:  # some lock no folder
            raise
        return None


def _remove_left(target: Path, disk: Disk) -> None:
    """Remove folders of writers that were killed. What cannot be removed stays: it is in nobody's way."""
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.tmp")
    for name in os.listdir(target.parent):
        if pattern.fullmatch(name):
            left = target.with_name(name)
            with contextlib.suppress(OSError):
                fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if _take(fd, left, disk):
                        _remove(left, disk)
                finally:
                    os.close(fd)


def _remove(folder: Path, disk: Disk) -> None:
    for name in os.listdir(folder):
        disk.unlink(folder / name)
    disk.rmdir(folder)


def _sync(disk: Disk, folder: Path) -> None:
    try:
        disk.fsync_dir(folder)
    except OSError as err:
        if err.errno not in UNSUPPORTED:  # some file systems do not sync folders
            raise


def _write(disk: Disk, path: Path, pieces: Iterable[Bytes]) -> int:
    total = 0
    fd = disk.create(path)
    try:
        for piece in pieces:
            view = memoryview(piece)
            for at in range(0, view.nbytes, MAX_PIECE_BYTES):
                disk.write(fd, path, view[at : at + MAX_PIECE_BYTES])
            total += view.nbytes
        disk.fsync(fd, path)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.close(fd, path)
        raise
    disk.close(fd, path)  # network file systems tell of failed writes here
    return total
