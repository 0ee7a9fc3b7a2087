"""One shard being written: a tar and its index under temporary names, synced, then published."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from trajload.manifest import IndexEntry, ShardEntry
from trajload.shards import layout
from trajload.shards.columns import hex64
from trajload.shards.index_builder import IndexBuilder
from trajload.shards.records import Buffer, EpisodeRecord
from trajload.shards.tar import END_OF_ARCHIVE, header_bytes, padding, tar_header
from trajload.storage.atomic import TEMP_SUFFIX, publish

__all__ = ["IndexBytes", "ShardWriter", "index_entry"]

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class IndexBytes:
    """The pieces of an index file and what the manifest says of them."""

    parts: list[Buffer]
    entry: IndexEntry


def index_entry(shard: str, parts: list[Buffer]) -> IndexBytes:
    """Return `parts` of the index of `shard` with their manifest entry."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    entry = IndexEntry(
        name=layout.index_name(shard),
        num_bytes=sum(len(part) for part in parts),
        sha256=digest.hexdigest(),
        header_xxh3_64=hex64(xxhash.xxh3_64_intdigest(parts[0])),
    )
    return IndexBytes(parts, entry)


def write_synced(path: str, parts: Iterable[Buffer]) -> None:
    """Write `parts` to a new file and bring it to the disk."""
    with open(path, "wb") as handle:
        for part in parts:
            handle.write(part)
        handle.flush()
        os.fsync(handle.fileno())


class ShardWriter:
    """Writes episodes to `shards/NNNNNN.tar.tmp`; not thread-safe.

    `finish` leaves the synced temporary files and returns the manifest entry; `publish` gives them their names.
    """

    def __init__(self, folder: Path, number: int, streams: Sequence[str]) -> None:
        self.name = layout.shard_name(number)
        self._folder = folder
        self._streams = tuple(streams)
        self._builder = IndexBuilder()
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0
        self._handle = open(self._path(self.name) + TEMP_SUFFIX, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115

    def _path(self, name: str) -> str:
        return os.fspath(self._folder / name)

    @property
    def num_episodes(self) -> int:
        return self._builder.num_episodes

    @staticmethod
    def size_of(record: EpisodeRecord) -> int:
        """Return how many bytes `record` takes in a tar."""
        return sum(
            header_bytes(member.name, member.size) + member.size + padding(member.size) for member in record.members()
        )

    def _write(self, part: Buffer) -> None:
        self._handle.write(part)
        self._sha256.update(part)
        self.num_bytes += len(part)

    def add(self, record: EpisodeRecord) -> None:
        """Append one episode."""
        offsets = []
        for member in record.members():
            self._write(tar_header(member.name, member.size))
            offsets.append(self.num_bytes)
            for part in member.parts:
                self._write(part)
            if pad := padding(member.size):
                self._write(bytes(pad))
        self._builder.add(record, offsets)

    def finish(self) -> ShardEntry:
        """Complete and sync tar and index, still under their temporary names."""
        self._write(END_OF_ARCHIVE)
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._handle.close()
        parts = self._builder.parts(shard=self.name, shard_num_bytes=self.num_bytes, streams=self._streams)
        index = index_entry(self.name, parts)
        write_synced(self._path(index.entry.name) + TEMP_SUFFIX, index.parts)
        return ShardEntry(
            name=self.name,
            num_bytes=self.num_bytes,
            sha256=self._sha256.hexdigest(),
            num_episodes=self._builder.num_episodes,
            num_steps=self._builder.num_steps,
            index=index.entry,
        )

    def publish(self) -> None:
        """Give the finished files their names; the caller syncs the folder."""
        publish(self._path(self.name))
        publish(self._path(layout.index_name(self.name)))

    def abort(self) -> None:
        """Remove the temporary files. Idempotent."""
        with suppress(OSError):  # a full disk must not keep us from removing what filled it
            self._handle.close()
        for name in (self.name, layout.index_name(self.name)):
            Path(self._path(name) + TEMP_SUFFIX).unlink(missing_ok=True)
