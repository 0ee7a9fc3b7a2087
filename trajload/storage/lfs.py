"""Recognises a Git LFS pointer: the text that stands in place of a file nobody fetched."""

from __future__ import annotations

from trajload.storage.regular import open_regular
from trajload.types import PathLikeStr

__all__ = ["LFS_ADVICE", "is_lfs_pointer", "is_lfs_pointer_file"]

_MAGIC = b"version https://git-lfs.github.com/spec/"
LFS_ADVICE = "is a Git LFS pointer, not the file itself; run 'git lfs pull' in its repository"


def is_lfs_pointer(head: bytes) -> bool:
    """Return whether `head`, the first bytes of a file, begins a Git LFS pointer."""
    return head.startswith(_MAGIC)


def is_lfs_pointer_file(path: PathLikeStr) -> bool:
    """Return whether the file at `path` is a Git LFS pointer; False where it cannot be read."""
    try:
        with open_regular(path) as handle:
            return is_lfs_pointer(handle.read(len(_MAGIC)))
    except OSError:
        return False
