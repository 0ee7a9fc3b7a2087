"""Reading a committed part: its list of files, and their bytes checked against their digests."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajload.checkpoint.digests import digest_bytes, new_digest
from trajload.checkpoint.disk import Bytes
from trajload.checkpoint.entries import Commit, FileEntry, PartSummary, record_path
from trajload.checkpoint.failures import reason
from trajload.checkpoint.medium import Medium
from trajload.checkpoint.record import decode_record
from trajload.errors import CheckpointCorruptError, CheckpointError, ConfigError

__all__ = ["PartReader", "check_pieces", "read_part"]


def check_pieces(medium: Medium, entry: FileEntry, *, read: bool = True) -> None:
    """Raise CheckpointCorruptError unless the file is there, of its size and, where `read`, of its digest.

    Raises:
        CheckpointError: The system refused to read it.
    """
    with _reading(entry.path):
        size = medium.size(entry.path)
        if size != entry.bytes:
            raise CheckpointCorruptError(
                f"file {entry.path!r} has {size} bytes, expected {entry.bytes}: it was cut or replaced."
            )
        if read:
            for _ in checked(medium, entry):
                pass


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    """Say which file of a checkpoint is missing, or cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointCorruptError(f"file {path!r} is missing: the checkpoint is not whole.") from None
    except OSError as err:
        raise CheckpointCorruptError(f"file {path!r} cannot be read: {reason(err)}.") from err


def checked(medium: Medium, entry: FileEntry) -> Iterator[Bytes]:
    """Yield a file's bytes, and raise CheckpointCorruptError at their end unless they are what `entry` says.

    Each piece is valid until the next is asked for. Use nothing of it before the end, or be ready to throw it away.
    """
    digest = new_digest(entry.digest.partition(":")[0])
    for piece in medium.pieces(entry.path):
        digest.update(piece)
        yield piece
    if (digest.bytes, digest.text()) != (entry.bytes, entry.digest):
        raise CheckpointCorruptError(
            f"file {entry.path!r} is damaged: got {digest.bytes} bytes of {digest.text()}, "
            f"expected {entry.bytes} of {entry.digest}."
        )


@dataclass(frozen=True)
class PartReader:
    """One rank's part of a commit, as its checked part.json lists it."""

    medium: Medium
    summary: PartSummary
    files: Mapping[str, FileEntry]
    extra: Mapping[str, Any]
    record: str = ""
    """Of its commit, which whoever writes the store may remove at any time; "" while there is none."""

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Say that the commit was removed, where that is why a file cannot be read.

        Raises:
            CheckpointError: It was; or whatever the block raised.
        """
        try:
            yield
        except (CheckpointCorruptError, FileNotFoundError) as err:
            if self.record:
                _refuse_removed(self.medium, self.record, err)
            raise

    @property
    def rank(self) -> int:
        return self.summary.rank

    def entry(self, name: str) -> FileEntry:
        """Return the entry of a file; CheckpointError, with the names there are, where the part has none."""
        found = self.files.get(name)
        if found is None:
            raise CheckpointError(f"part {self.summary.path!r} has no file {name!r}: it has {sorted(self.files)}.")
        return found

    def path(self, name: str) -> Path:
        """Return where a file can be opened on this machine. Its bytes are not checked by this."""
        entry = self.entry(name)
        with self.guarded():
            try:
                return self.medium.local_file(entry.path)
            except OSError as err:
                raise CheckpointCorruptError(f"file {entry.path!r} cannot be had: {reason(err)}.") from err

    def chunks(self, name: str) -> Iterator[Bytes]:
        """Yield a file's bytes; CheckpointCorruptError comes at the end where they are not what was saved."""
        entry = self.entry(name)
        with self.guarded(), _reading(entry.path):
            yield from checked(self.medium, entry)

    def read(self, name: str, verify: bool = True) -> bytes:
        """Return a file's bytes, checked unless `verify` is off."""
        entry = self.entry(name)
        if verify:
            return b"".join(bytes(piece) for piece in self.chunks(name))
        with self.guarded(), _reading(entry.path):
            return b"".join(bytes(piece) for piece in self.medium.pieces(entry.path))


def _refuse_removed(medium: Medium, record: str, err: Exception) -> None:
    """Raise CheckpointError where the record of what could not be read is gone: files go after it."""
    try:
        medium.size(record)
    except FileNotFoundError:
        raise CheckpointError(
            f"the checkpoint of record {record!r} was removed while it was being read: whoever writes the store keeps newer ones. "
            "Pick again; what is read for long, or later, should be pinned first."
        ) from err
    except OSError:
        return  # not known


def read_part(medium: Medium, commit: Commit, rank: int) -> PartReader:
    """Return a rank's part of a commit, its part.json checked against the commit's record.

    Raises:
        ConfigError: The commit has no such rank.
        CheckpointCorruptError: part.json is missing or altered.
        CheckpointError: The commit was removed.
    """
    if not 0 <= rank < commit.world:
        raise ConfigError(f"rank is {rank!r}: commit {commit.seq} has parts of ranks [0, {commit.world}).")
    summary = commit.parts[rank]
    try:
        part = parse_part(medium, summary, nonce=commit.nonce, step=commit.step)
    except CheckpointCorruptError as err:
        _refuse_removed(medium, record_path(commit.seq), err)
        raise
    return dataclasses.replace(part, record=record_path(commit.seq))


def parse_part(medium: Medium, summary: PartSummary, *, nonce: str, step: int) -> PartReader:
    """Return the part that a summary names; see `read_part`."""
    with _reading(summary.path):
        data = medium.read(summary.path)
    if (len(data), digest_bytes(data, summary.digest.partition(":")[0])) != (summary.bytes, summary.digest):
        raise CheckpointCorruptError(
            f"file {summary.path!r} is damaged: got {len(data)} bytes of {digest_bytes(data)}, "
            f"expected {summary.bytes} of {summary.digest}."
        )
    body, _ = decode_record(data, "part")
    files, extra = body.get("files"), body.get("extra")
    if (body.get("rank"), body.get("nonce"), body.get("step")) != (summary.rank, nonce, step):
        raise CheckpointCorruptError(
            f"file {summary.path!r} is of rank {body.get('rank')!r}, step {body.get('step')!r} and nonce "
            f"{body.get('nonce')!r}: expected {summary.rank}, {step} and {nonce!r}."
        )
    if not isinstance(files, list) or not isinstance(extra, dict):
        raise CheckpointCorruptError(f"file {summary.path!r} lists no files.")
    entries = [FileEntry.from_json(file) for file in files]
    found = {entry.name: entry for entry in entries}
    if len(found) != len(entries):
        raise CheckpointCorruptError(f"file {summary.path!r} lists a file twice.")
    return PartReader(medium, summary, found, extra)
