"""Copies a commit into another store: another tier, another disk, an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajload.checkpoint.entries import Commit
from trajload.errors import ConfigError

if TYPE_CHECKING:
    from trajload.checkpoint.store import Store

__all__ = ["promote"]


def promote(source: Store, commit: Commit, target: Store) -> Commit:
    """Copy a commit, checking every byte on the way, and return the commit it is in the other store.

    Its info gets "promoted_from", which says from where. What has been promoted already, and is whole, is not copied
    again. References become files of their own.

    Raises:
        CheckpointCorruptError: A file is not what was saved; nothing was committed there.
        CheckpointSpaceError: It does not fit there.
        WriterConflictError: Another process writes the other store.
    """
    if source.uuid == target.uuid:
        raise ConfigError(
            f"commit {commit.seq} is to be promoted into its own store {target.name!r}: expected another one."
        )
    with target.writer():
        for there in reversed(target.commits()):
            came_from = there.info.get("promoted_from")
            same = isinstance(came_from, dict) and came_from.get("digest") == commit.digest
            if same and not target.verify(there, "full"):
                return there
        generation = target.begin(commit.step, world=commit.world, need_bytes=commit.bytes)
        try:
            votes = []
            for rank in range(commit.world):
                reader = source.part(commit, rank)
                writer = generation.part(rank)
                for name, entry in reader.files.items():
                    writer.write(name, reader.chunks(name), algorithm=entry.digest.partition(":")[0])
                votes.append(writer.finish(reader.extra))
            info = {
                **commit.info,
                "promoted_from": {"store": commit.store, "seq": commit.seq, "digest": commit.digest},
            }
            return target.commit(generation, votes, info)
        except BaseException:
            target.abandon(generation)
            raise
