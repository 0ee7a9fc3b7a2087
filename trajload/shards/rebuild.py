"""Indexes made anew from their shards, which hold everything an index says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trajload.errors import ConfigError, ShardCorruptError, ShardNotFoundError, TrajloadError, at
from trajload.manifest import Manifest, ShardEntry, read_manifest
from trajload.manifest.files import write_manifest
from trajload.shards.index import ShardIndex
from trajload.shards.index_builder import IndexBuilder
from trajload.shards.lock import FolderLock
from trajload.shards.scan import scan_episodes
from trajload.shards.shard_writer import IndexBytes, index_entry
from trajload.storage.atomic import write_atomic
from trajload.storage.regular import open_regular
from trajload.types import PathLikeStr

__all__ = ["file_sha256", "rebuild_index"]


def file_sha256(path: PathLikeStr) -> str:
    """Return the SHA-256 of a file in hex, read in pieces."""
    digest = hashlib.sha256()
    with open_regular(path) as handle:
        while piece := handle.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def rebuild_index(path: PathLikeStr, *, shards: Sequence[str] | None = None, accept_changed: bool = False) -> list[str]:
    """Make indexes anew from their shards, and return the names of those written.

    A rebuilt index has the bytes of the first one, so that the manifest stays as it is. Where it does not (another
    FFmpeg may describe a video in other words), `accept_changed` writes a new manifest, with a new digest.

    Args:
        path: Folder of the dataset.
        shards: Names of shards to rebuild the index of, as the manifest has them. Default: those whose index is
            absent or not the manifest's.
        accept_changed: Write an index that differs from the manifest's, and the manifest with it.

    Raises:
        ConfigError: `shards` names one that the manifest does not list.
        ShardNotFoundError, ShardCorruptError: A shard itself is absent or changed: nothing can be rebuilt from it.
        ManifestError: There is no usable manifest, which alone says what the streams are.
    """
    lock = FolderLock(path)
    try:
        manifest = read_manifest(path)
        known = {entry.name: entry for entry in manifest.shards}
        for name in shards or ():
            if name not in known:
                raise ConfigError(f"shards names {name!r}: expected one of {', '.join(map(repr, known))}.")
        chosen = [known[name] for name in shards] if shards is not None else _without_index(path, manifest)
        changed: dict[str, ShardEntry] = {}
        for entry in chosen:
            with at(dataset=str(path), shard=entry.name):
                built = _build(path, manifest, entry)
                if built.entry != entry.index:
                    if not accept_changed:
                        raise ShardCorruptError(
                            f"index rebuilt of {entry.name!r} has SHA-256 {built.entry.sha256}, expected "
                            f"{entry.index.sha256}: another version wrote it. Pass accept_changed=True to write it, and "
                            "a manifest with a new digest."
                        )
                    changed[entry.name] = replace(entry, index=built.entry)
                write_atomic(Path(path, built.entry.name), b"".join(built.parts))
        if changed:
            entries = tuple(changed.get(entry.name, entry) for entry in manifest.shards)
            write_manifest(path, replace(manifest, shards=entries, stored_digest=None))
        return [entry.index.name for entry in chosen]
    finally:
        lock.release()


def _without_index(path: PathLikeStr, manifest: Manifest) -> list[ShardEntry]:
    """Return the shards whose index cannot be used."""
    out = []
    for entry in manifest.shards:
        try:
            index = ShardIndex(Path(path, entry.index.name), entry)
            for name in index.column_names:
                index.column(name)
        except TrajloadError:
            out.append(entry)
    return out


def _build(path: PathLikeStr, manifest: Manifest, entry: ShardEntry) -> IndexBytes:
    file = Path(path, entry.name)
    if not file.is_file():
        raise ShardNotFoundError(f"file {str(file)!r} does not exist: its index cannot be rebuilt. Restore it.")
    sha256 = file_sha256(file)
    if sha256 != entry.sha256:
        raise ShardCorruptError(
            f"file {entry.name!r} has SHA-256 {sha256}, expected {entry.sha256}: an index of damaged data would hide the "
            "damage. Restore the shard."
        )
    builder = IndexBuilder()
    for record, offsets in scan_episodes(file, manifest.streams):
        builder.add(record, offsets)
    streams = [spec.name for spec in manifest.streams]
    return index_entry(entry.name, builder.parts(shard=entry.name, shard_num_bytes=entry.num_bytes, streams=streams))
