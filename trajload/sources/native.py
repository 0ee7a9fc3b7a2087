"""Datasets in trajload's own format, opened in place."""

# Shapes: E episodes, N rows

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trajload.errors import ConfigError, ManifestError, ShardCorruptError, at
from trajload.manifest import MANIFEST_NAME, Manifest, ShardEntry, read_manifest, sha256_hex
from trajload.refs import ByteRange, Track
from trajload.shards.array_columns import raw_arrays, uniform_clocks
from trajload.shards.index import ShardIndex
from trajload.shards.layout import check_streams
from trajload.shards.stored import episode_bytes
from trajload.shards.tracks import build_track
from trajload.sources.base import Dataset, EpisodeInfo, Reopening, episode_offsets
from trajload.sources.columns import ASK, LACKS, RAW, ArrayColumns, ClockColumns
from trajload.spec import UniformClock
from trajload.storage import LocalStore
from trajload.storage.lfs import LFS_ADVICE, is_lfs_pointer, is_lfs_pointer_file
from trajload.storage.locks import ForkLock
from trajload.storage.regular import open_regular
from trajload.types import Int64Array, PathLikeStr

__all__ = ["NativeDataset", "is_native", "open_native"]

_MAX_MAPPED_INDEXES = 64
"""Each mapped index holds a file descriptor, of which a process commonly has 1024."""


def is_native(path: PathLikeStr) -> bool:
    """Return whether `path` looks like a dataset in trajload's own format (or what is left of one: a pointer, an unreadable manifest)."""
    file = Path(path, MANIFEST_NAME)
    try:
        with open_regular(file) as handle:
            head = handle.read(4096)
    except FileNotFoundError:
        return file.is_symlink()  # a dangling one: opening tells what is wrong
    except OSError:
        return True
    compact = b"".join(head.split())
    return is_lfs_pointer(head) or b'"format":"trajload"' in compact


def open_native(path: PathLikeStr) -> NativeDataset:
    """Open the dataset in folder `path`.

    Reads the manifest and, of each shard's index, two columns; checks every shard's size.

    Raises:
        ManifestError: The manifest is absent, of a newer version, damaged, or a Git LFS pointer.
        ShardNotFoundError: A shard or an index is absent.
        ShardCorruptError: A shard or an index has another size or header than the manifest says.
    """
    return NativeDataset(path)


class NativeDataset(Dataset):
    """A dataset of shards, see `open_native`. Thread-safe; may be used after a fork and pickled."""

    kind = "native"

    def __init__(self, path: PathLikeStr) -> None:
        self.path = str(path)
        self.manifest: Manifest = read_manifest(path)
        self.name = self.manifest.name
        self.digest = self.manifest.digest
        try:
            check_streams(self.manifest.streams)
        except ConfigError as err:
            raise ManifestError(f"the manifest's streams are unusable: {err.message}") from err
        self.streams = {spec.name: spec for spec in self.manifest.streams}
        rate = self.manifest.step_rate_hz
        self.step_rate_hz = None if rate is None else float(rate)
        self.store = LocalStore(path)
        self._start()
        steps: list[Int64Array] = [np.empty(0, np.int64)]
        terminated = [np.empty(0, np.int8)]
        for entry in self.manifest.shards:
            with at(dataset=self.path, shard=entry.name):
                self._check_shard(entry)
                index = ShardIndex(Path(path, entry.index.name), entry)
                steps.append(np.array(index.num_steps_E))
                terminated.append(np.array(index.terminated_E))
                self._check_counts(entry, index)
        self.num_steps_E = np.concatenate(steps)
        self.terminated_E = np.concatenate(terminated)
        for array in (self.num_steps_E, self.terminated_E):
            array.flags.writeable = False
        self._first_episode = episode_offsets([entry.num_episodes for entry in self.manifest.shards])

    def _start(self) -> None:
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()
        self._lock = ForkLock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_indexes", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def reopening(self) -> Reopening:
        return Reopening(type(self), {"path": os.path.abspath(self.path)}, self.name, self.digest)

    def _check_shard(self, entry: ShardEntry) -> None:
        size = self.store.size(entry.name)
        if size == entry.num_bytes:
            return
        if is_lfs_pointer_file(Path(self.path, entry.name)):
            raise ShardCorruptError(f"file {entry.name!r} {LFS_ADVICE}.")
        what = "is truncated" if size < entry.num_bytes else "has grown"
        raise ShardCorruptError(
            f"file {entry.name!r} {what}: got {size} bytes, expected {entry.num_bytes}. Restore it from its source; "
            "'trajload verify' lists all damage."
        )

    def _check_counts(self, entry: ShardEntry, index: ShardIndex) -> None:
        got = (index.num_episodes, int(index.num_steps_E.sum()))
        if got != (entry.num_episodes, entry.num_steps) or (index.num_steps_E < 1).any():
            raise ShardCorruptError(
                f"index {entry.index.name!r} does not fit the manifest: got {got[0]} episodes and {got[1]} steps, "
                f"expected {entry.num_episodes} and {entry.num_steps}, no episode empty."
            )

    def _locate(self, episode: int) -> tuple[ShardEntry, ShardIndex, int]:
        """Return the shard of an episode, its index, and the episode's place in it."""
        number = int(np.searchsorted(self._first_episode, episode, side="right")) - 1
        entry = self.manifest.shards[number]
        with self._lock:
            index = self._indexes.get(number)
            if index is None:
                index = self._indexes[number] = ShardIndex(Path(self.path, entry.index.name), entry)
                # An evicted index stays mapped as long as a track still shows a part of it.
                while len(self._indexes) > _MAX_MAPPED_INDEXES:
                    self._indexes.popitem(last=False)
            self._indexes.move_to_end(number)
        return entry, index, episode - int(self._first_episode[number])

    def episode_key(self, episode: int) -> str:
        _, index, local = self._locate(self.check_episode(episode))
        return index.episode_key(local)

    def located(self, episode: int) -> tuple[ShardEntry, ShardIndex, int]:
        """Return the shard of an episode, its index, and the episode's place in it: for jobs that rewrite shards."""
        return self._locate(self.check_episode(episode))

    def stored_bytes(self) -> Int64Array:
        """Return how many bytes each episode takes in its shard, (E,)."""
        sizes = [np.empty(0, np.int64)]
        for number, entry in enumerate(self.manifest.shards):
            if entry.num_episodes:
                sizes.append(episode_bytes(self._locate(int(self._first_episode[number]))[1]))
        return np.concatenate(sizes)

    def episode(self, episode: int) -> EpisodeInfo:
        episode = self.check_episode(episode)
        entry, index, local = self._locate(episode)
        terminated = int(self.terminated_E[episode])
        return EpisodeInfo(
            index=episode,
            key=index.episode_key(local),
            num_steps=int(self.num_steps_E[episode]),
            file=entry.name,
            terminated=None if terminated < 0 else bool(terminated),
            metadata=index.metadata(local),
        )

    def track(self, episode: int, stream: str) -> Track | None:
        spec = self.spec(stream)
        episode = self.check_episode(episode)
        entry, index, local = self._locate(episode)
        with at(dataset=self.path, shard=entry.name, episode=episode, stream=stream):
            row = index.find_track(local, stream)
            if row is None:
                return None
            return build_track(index, spec, entry.name, int(self.num_steps_E[episode]), row)

    def has_stream(self, episode: int, stream: str) -> bool:
        self.spec(stream)
        _, index, local = self._locate(self.check_episode(episode))
        row = index.find_track(local, stream)
        return row is not None and row.num_rows > 0

    def step_times_ns(self, episode: int, steps: Int64Array) -> Int64Array:
        _, index, local = self._locate(self.check_episode(episode))
        clock = index.clock(local)
        if isinstance(clock, tuple):
            return UniformClock(rate_hz=clock[0], start_ns=clock[1]).times_ns(steps)
        return clock[steps]

    def stream_times_ns(self, episode: int, stream: str) -> Int64Array:
        if self.spec(stream).clock != "clocked":
            raise ConfigError(f"stream {stream!r} is stepwise: its row i belongs to step i. Use step_times_ns.")
        episode = self.check_episode(episode)
        entry, index, local = self._locate(episode)
        with at(dataset=self.path, shard=entry.name, episode=episode, stream=stream):
            row = index.find_track(local, stream)
            if row is None:
                return np.empty(0, np.int64)
            times_ns = index.times_ns(row)
            if len(times_ns) != row.num_rows:
                raise ShardCorruptError(
                    f"clocked stream {stream!r} has {len(times_ns)} timestamps in the index, expected {row.num_rows}."
                )
            return times_ns

    def array_columns(self, episode: int, stream: str) -> ArrayColumns | None:
        spec = self.spec(stream)
        if spec.encoding != "npy" or spec.clock != "stepwise":
            return None
        entry, index, local = self._locate(self.check_episode(episode))
        with at(dataset=self.path, shard=entry.name, stream=stream):
            is_raw_R, is_absent_R, offset_R, checksum_R = raw_arrays(index, spec)
            kind_R = np.where(is_raw_R, RAW, np.where(is_absent_R, LACKS, ASK)).astype(np.int8)
            return ArrayColumns(episode - local, entry.name, kind_R, offset_R, np.array(index.num_steps_E), checksum_R)

    def clock_columns(self, episode: int) -> ClockColumns | None:
        _, index, local = self._locate(self.check_episode(episode))
        return ClockColumns(episode - local, *uniform_clocks(index))

    def close(self) -> None:
        with self._lock:
            self._indexes.clear()
        self.store.close()

    def stats(self) -> Mapping[str, Any]:
        """Return the statistics of each numeric stream: count, mean, std, min, max, q01, q99."""
        entry = self.manifest.stats
        if entry is None:
            return {}
        data = self.store.read(ByteRange(entry.name, 0, self.store.size(entry.name)))
        if sha256_hex(data) != entry.sha256:
            state = LFS_ADVICE if is_lfs_pointer(data) else f"has SHA-256 {sha256_hex(data)}, expected {entry.sha256}"
            raise ManifestError(f"file {entry.name!r} {state}. Restore it from its source.")
        streams: Mapping[str, Any] = json.loads(data)["streams"]
        return streams

    def provenance(self) -> Mapping[str, Any]:
        return self.manifest.provenance
