"""Which files of a LeRobot folder are there, and the digest of the dataset version they make."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from trajload.sources.lerobot_episodes import EpisodesV3, EpisodeTable
from trajload.sources.lerobot_meta import LeRobotInfo
from trajload.types import BoolArray

__all__ = ["dataset_digest", "present_data", "present_video", "scan_files"]

_MAX_DEPTH = 12


def scan_files(root: Path, tops: Iterable[str]) -> dict[str, int]:
    """Return relative path and size of every regular file under the folders `tops` of `root`.

    One pass with scandir: asking the file system for each expected name takes minutes on network disks.
    Links are followed (model hubs lay datasets out as links into a blob cache); a dangling link is no file.
    """
    out: dict[str, int] = {}
    todo = [(top, 1) for top in sorted(set(tops))]
    while todo:
        rel, depth = todo.pop()
        try:
            entries = os.scandir(root / rel if rel else root)
        except (FileNotFoundError, NotADirectoryError):
            continue
        with entries:
            for entry in entries:
                name = f"{rel}/{entry.name}" if rel else entry.name
                try:
                    if entry.is_dir():
                        if depth < _MAX_DEPTH:
                            todo.append((name, depth + 1))
                    elif stat.S_ISREG((status := entry.stat()).st_mode):
                        out[name] = status.st_size
                except OSError:
                    continue
    return out


def dataset_digest(root: Path, meta_files: Iterable[str], files: dict[str, int]) -> str:
    """Return the sha256 (hex) of the metadata's bytes and of name and size of every data and video file.

    It changes with any edit of the metadata and with files added, removed, renamed or resized; not with bytes
    changed in place inside a file of the same size. See docs/decisions/0030-lerobot-in-place.md.
    """
    total = hashlib.sha256(b"trajload/lerobot/1\n")
    for name in sorted(set(meta_files)):
        path = root / name
        if path.is_file():
            data = path.read_bytes()
            total.update(f"{name}\n{len(data)}\n".encode())
            total.update(data)
    for name in sorted(files):
        total.update(f"\n{name}\n{files[name]}".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _present(num: int, key_E: np.ndarray | None, file_of: Callable[[int], str], files: dict[str, int]) -> BoolArray:
    """Return per episode whether its file is there; names are built once per distinct file."""
    if key_E is None:
        return np.fromiter((file_of(i) in files for i in range(num)), dtype=np.bool_, count=num)
    _, first_K, which_E = np.unique(key_E, return_index=True, return_inverse=True)
    there_K = np.fromiter((file_of(int(i)) in files for i in first_K), dtype=np.bool_, count=len(first_K))
    return there_K[which_E.reshape(-1)] if num else np.zeros(0, dtype=np.bool_)


def present_data(episodes: EpisodeTable, files: dict[str, int]) -> BoolArray:
    """Return per episode (E,) whether its parquet file is there."""
    key_E = episodes.data_key_E() if isinstance(episodes, EpisodesV3) else None
    # Unchecked names are enough here: what the scan found lies inside the folder.
    return _present(len(episodes), key_E, episodes.data_name, files)


def present_video(info: LeRobotInfo, episodes: EpisodeTable, camera: str, files: dict[str, int]) -> BoolArray:
    """Return per episode (E,) whether its file of `camera` is there; all False where none is named."""
    if info.video_path is None or (isinstance(episodes, EpisodesV3) and not episodes.has_camera(camera)):
        return np.zeros(len(episodes), dtype=np.bool_)
    key_E = episodes.video_key_E(camera) if isinstance(episodes, EpisodesV3) else None
    return _present(len(episodes), key_E, lambda i: episodes.video_name(i, camera), files)
