"""Packet tables of video files that stand where they are, remembered in memory and on disk.

Building a table demuxes the whole file. The result is kept under a cache folder of the user, never beside the data:
dataset folders may be read-only or shared. An entry is used only while the file's identity (absolute real path, size,
mtime, digest of the first and last 64 KiB) is the one it was built from, and its own checksum holds; anything else means
building again. See docs/decisions/0031-index-cache.md.
"""

# Shapes: P packets, F frames, G groups of pictures

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from trajload.errors import ShardNotFoundError, SourceError
from trajload.refs import VideoIndex
from trajload.storage.locks import ForkLock
from trajload.types import NDArray, PathLikeStr

__all__ = ["IndexCache", "default_cache_dir", "file_identity"]

CACHE_VERSION = 1
_EDGE_BYTES = 64 * 1024
_MAX_ENTRIES = 200_000
_MEMORY_BYTES = 256 * 2**20
_PRUNE_EVERY = 4096

_ARRAYS: dict[str, str] = {
    "offset_P": "int64",
    "size_P": "int64",
    "pts_P": "int64",
    "dts_P": "int64",
    "is_keyframe_P": "bool",
    "is_discard_P": "bool",
    "gop_checksum_G": "uint64",
    "packet_of_frame_F": "int64",
    "seek_of_frame_F": "int64",
}
_SCALARS = ("codec", "width", "height", "pix_fmt", "color_space", "color_range", "rotation")


def default_cache_dir() -> Path:
    """Return `$XDG_CACHE_HOME/trajload`, or `~/.cache/trajload`; a folder that cannot be made where there is no home.

    The one place beside `World.from_env` and the command line that looks at the environment: it decides where a
    cache is kept, never what is read. Pass `cache_dir=` to `open` to do without.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    if base and os.path.isabs(base):
        return Path(base) / "trajload"
    try:
        return Path.home() / ".cache" / "trajload"
    except RuntimeError:
        # Containers run as a user without an entry and without HOME. A cache is done without, with a note.
        return Path(os.devnull, "no-home-folder")


def file_identity(path: Path) -> str:
    """Return the identity of a file: real path, size, mtime, and a digest of its first and last 64 KiB."""
    real = os.path.realpath(path)
    fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC)
    try:
        stat = os.fstat(fd)
        edge = hashlib.blake2b(os.pread(fd, _EDGE_BYTES, 0), digest_size=16)
        edge.update(os.pread(fd, _EDGE_BYTES, max(0, stat.st_size - _EDGE_BYTES)))
    finally:
        os.close(fd)
    return json.dumps([real, stat.st_size, stat.st_mtime_ns, edge.hexdigest()])


class IndexCache:
    """`VideoIndex` of files, from memory, from the cache folder, or built. Thread-safe, picklable.

    Args:
        cache_dir: Folder for entries; created on first use. One that cannot be written is done without.
        max_entries: Entries kept on disk; the least recently written go first.
    """

    def __init__(self, cache_dir: PathLikeStr, max_entries: int = _MAX_ENTRIES) -> None:
        self.cache_dir = Path(cache_dir)
        self.max_entries = max_entries
        self.problem: str | None = None
        """Why the folder cannot be used, once that was seen."""
        self.num_built = 0
        self._memory: OrderedDict[str, tuple[VideoIndex, int]] = OrderedDict()
        self._used = 0
        self._num_writes = 0
        self._lock = ForkLock()
        self._build_locks = [ForkLock() for _ in range(32)]

    def __getstate__(self) -> dict[str, Any]:
        return {"cache_dir": str(self.cache_dir), "max_entries": self.max_entries}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def get(self, path: Path) -> VideoIndex:
        """Return the packet table of the video file `path`.

        Raises:
            ShardNotFoundError: The file is absent.
            DecodeError, SourceError: The file is no video that can be indexed.
        """
        key = str(path)
        with self._lock:
            found = self._memory.get(key)
            if found is not None:
                self._memory.move_to_end(key)
                return found[0]
        with self._build_locks[hash(key) % len(self._build_locks)]:
            with self._lock:
                found = self._memory.get(key)
            if found is not None:
                return found[0]
            index = self._load_or_build(path)
        size = sum(getattr(index, name).nbytes for name in _ARRAYS)
        with self._lock:
            if key not in self._memory:
                self._memory[key] = (index, size)
                self._used += size
            while self._used > _MEMORY_BYTES and len(self._memory) > 1:
                _, (_, dropped) = self._memory.popitem(last=False)
                self._used -= dropped
        return index

    def _load_or_build(self, path: Path) -> VideoIndex:
        from trajload.shards.video_index import build_video_index

        try:
            identity = file_identity(path)
        except (FileNotFoundError, NotADirectoryError):
            raise ShardNotFoundError(
                f"file {str(path)!r} does not exist, but the dataset names it. Restore it, or open with missing='skip' (--skip-missing on the command line)."
            ) from None
        except OSError as err:
            raise SourceError(f"file {str(path)!r} cannot be read: {err.strerror}.") from err
        entry = self._entry(path)
        index = _load(entry, identity)
        if index is None:
            index = build_video_index(path)
            self.num_built += 1
            if file_identity(path) != identity:
                raise SourceError(
                    f"file {str(path)!r} changed while it was indexed. Open the dataset when it is at rest."
                )
            self._store(entry, identity, index)
        return index

    def _entry(self, path: Path) -> Path:
        name = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=16).hexdigest()
        return self.cache_dir / f"video-index-{CACHE_VERSION}" / name[:2] / f"{name}.safetensors"

    def _store(self, entry: Path, identity: str, index: VideoIndex) -> None:
        """Write an entry under a temporary name, then rename: a reader sees the old one or the new one."""
        if self.problem is not None:
            return
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            fd, tmp = tempfile.mkstemp(dir=entry.parent, prefix=".tmp-")
            try:
                with os.fdopen(fd, "wb") as f:
                    f.write(_dump(identity, index))
                os.replace(tmp, entry)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(tmp)
                raise
        except OSError as err:
            self.problem = (
                f"packet tables are not kept between runs: the cache folder {str(self.cache_dir)!r} cannot be written "
                f"({err.strerror or err}). Pass cache_dir= a folder that can."
            )
            return
        with self._lock:
            self._num_writes += 1
            due = self._num_writes == 1 or self._num_writes % min(_PRUNE_EVERY, self.max_entries) == 0
        if due:
            self._prune(entry.parent.parent)

    def _prune(self, folder: Path) -> None:
        """Remove the entries written longest ago until `max_entries` are left."""
        entries: list[tuple[int, str]] = []
        with contextlib.suppress(OSError):
            for sub in os.scandir(folder):
                if not sub.is_dir():
                    continue
                for item in os.scandir(sub.path):
                    with contextlib.suppress(OSError):
                        entries.append((item.stat().st_mtime_ns, item.path))
        entries.sort()
        for _, path in entries[: max(0, len(entries) - self.max_entries)]:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _checksum(arrays: dict[str, NDArray], head: str) -> str:
    total = xxhash.xxh3_128(head.encode())
    for name in sorted(arrays):
        total.update(name.encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()


def _dump(identity: str, index: VideoIndex) -> bytes:
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(getattr(index, name), dtype=dtype) for name, dtype in _ARRAYS.items()}
    arrays["extradata"] = np.frombuffer(index.extradata, dtype=np.uint8)
    head = json.dumps(
        {
            "version": CACHE_VERSION,
            "identity": identity,
            "time_base": [index.time_base.numerator, index.time_base.denominator],
            **{name: getattr(index, name) for name in _SCALARS},
        }
    )
    return save(arrays, metadata={"head": head, "checksum": _checksum(arrays, head)})


def _load(entry: Path, identity: str) -> VideoIndex | None:
    """Return the index of a cache entry, or None where there is none that can be trusted."""
    from safetensors.numpy import load

    try:
        data = entry.read_bytes()
    except OSError:
        return None
    # A cache entry is a hint: whatever is wrong with it, the answer is to build the table again.
    try:
        header_size = int.from_bytes(data[:8], "little")
        meta = json.loads(data[8 : 8 + header_size])["__metadata__"]
        head = json.loads(meta["head"])
        if head["version"] != CACHE_VERSION or head["identity"] != identity:
            return None
        arrays = load(data)
        if meta["checksum"] != _checksum(arrays, meta["head"]):
            return None
        values: dict[str, Any] = {name: head[name] for name in _SCALARS} | {name: arrays[name] for name in _ARRAYS}
        return VideoIndex(extradata=arrays["extradata"].tobytes(), time_base=Fraction(*head["time_base"]), **values)
    except Exception:
        return None
