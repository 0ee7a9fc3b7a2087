"""The moment a generation becomes a commit: everything it names is looked at, then one record appears."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from trajload.checkpoint.catalog import MAX_SEQ, Scan, live_files, record_path, scan
from trajload.checkpoint.entries import Commit, FileEntry, PartSummary
from trajload.checkpoint.failures import aborting
from trajload.checkpoint.generation import Generation
from trajload.checkpoint.lock import Lock
from trajload.checkpoint.medium import Medium
from trajload.checkpoint.reader import check_pieces, parse_part
from trajload.checkpoint.record import decode_record, encode_record, plain
from trajload.errors import CheckpointAbortedError, CheckpointCorruptError, ConfigError, WriterConflictError

__all__ = ["publish_commit"]


def publish_commit(
    medium: Medium,
    store_uuid: str,
    lock: Lock,
    generation: Generation,
    parts: Sequence[PartSummary],
    info: Mapping[str, Any],
) -> Commit:
    """Check all parts and publish the record; see `Store.commit`, which holds the lock."""
    ordered = tuple(sorted(parts, key=lambda part: part.rank))
    plain(dict(info), "info")  # refused before anything else is looked at
    with aborting("reading the records of the store"):
        found = scan(medium, store_uuid)
        found.highest_epoch = max(found.highest_epoch, lock.newest_epoch())
        _check_order(generation, found, lock.epoch)
    entries = _check_parts(medium, generation, ordered, found)
    last = found.commits[-1] if found.commits else None
    own = [entry for entry in entries if entry.path.startswith(generation.path + "/")]
    body = {
        "seq": generation.seq,
        "step": generation.step,
        "time": time.time(),
        "world": len(ordered),
        "parent": last.digest if last else None,
        "parent_seq": last.seq if last else None,
        "parts": [part.to_json() for part in ordered],
        "info": dict(info),
        "generation": generation.path,
        "nonce": generation.nonce,
        "epoch": lock.epoch,
        "refers": sorted({entry.path for entry in entries} - {entry.path for entry in own}),
        "bytes": sum(entry.bytes for entry in entries),
        "written_bytes": sum(entry.bytes for entry in own),
        "durability": medium.durability,
        "store": store_uuid,
    }
    data, _ = encode_record("commit", body)
    path = record_path(generation.seq)
    try:
        with aborting(f"publishing checkpoint record {path!r}"):
            won = medium.publish(path, data, generation.nonce)
    except CheckpointAbortedError as err:
        # The name may stand although its durability could not be had; readers judge it by its digests.
        raise CheckpointAbortedError(
            f"{err.message} Whether this one stands will be seen at the next resume."
        ) from err.__cause__
    if not won:
        raise WriterConflictError(
            f"sequence number {generation.seq} of {medium.name!r} was published by another writer first. "
            "Two runs write this store; end one of them."
        )
    commit = Commit.from_json(*decode_record(data, "commit"))
    if commit.refers and not lock.works:
        _look_again(medium, store_uuid, commit)
    generation.committed = True
    return commit


def _look_again(medium: Medium, store_uuid: str, commit: Commit) -> None:
    """Withdraw a commit whose references were removed while it was published, where nobody is kept from doing so.

    Whoever removes a commit reads all records after taking its record away, and before its files: it has seen ours, and
    left them, or its record was gone before ours appeared, and we see that now.
    """
    with aborting("reading the records of the store"):
        own, used = live_files(c for c in scan(medium, store_uuid).commits if c.seq != commit.seq)
        lost = [path for path in commit.refers if path not in used and "/".join(path.split("/")[:2]) not in own]
        if lost:
            medium.remove(record_path(commit.seq))
    if lost:
        raise CheckpointAbortedError(
            f"file {lost[0]!r} is referred to, and its commit was removed meanwhile. Nothing was committed."
        )


def _check_order(generation: Generation, found: Scan, epoch: int) -> None:
    generation.check()
    if generation.committed:
        raise ConfigError(f"generation {generation.path!r} is committed already.")
    if found.highest_epoch > epoch:
        raise WriterConflictError(
            f"this writer (epoch {epoch}) has lost the store to one of epoch {found.highest_epoch}: nothing was committed."
        )
    if found.highest_seq >= generation.seq or generation.seq > MAX_SEQ:
        raise WriterConflictError(
            f"sequence number {generation.seq} is taken: the store's highest is {found.highest_seq}. "
            "Something else was committed since this generation was begun; begin another."
        )


def _check_parts(
    medium: Medium, generation: Generation, parts: tuple[PartSummary, ...], found: Scan
) -> list[FileEntry]:
    ranks, world = [part.rank for part in parts], generation.world
    if not parts or ranks != list(range(len(parts))) or (world is not None and len(parts) != world):
        raise CheckpointAbortedError(
            f"parts are of ranks {ranks}, expected one of each of {world or len(parts)}: nothing was committed."
        )
    own, used = live_files(found.commits)
    entries: list[FileEntry] = []
    try:
        for summary in parts:
            if summary.path != f"{generation.path}/r{summary.rank:05d}/part.json":
                raise CheckpointCorruptError(
                    f"part {summary.path!r} is of another generation than {generation.path!r}."
                )
            part = parse_part(medium, summary, nonce=generation.nonce, step=generation.step)
            for entry in part.files.values():
                check_pieces(medium, entry, read=False)
                home = "/".join(entry.path.split("/")[:2])
                if home != generation.path and home not in own and entry.path not in used:
                    raise CheckpointCorruptError(f"file {entry.path!r} is referred to, and no commit has it any more.")
                entries.append(entry)
    except CheckpointCorruptError as err:
        raise CheckpointAbortedError(f"{err.message} Nothing was committed.") from err
    return entries
