"""Writes one rank's files into its part, and leaves out those that are as they were in the checkpoint before.

A file is left out if its digest is that of the file of the same name in the newest checkpoint. Taking a digest costs a
pass over the bytes, and nearly always everything has changed; so a sample is compared first, and only what might be equal
is digested before it is written. A sample never decides that something is equal.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trajload.checkpoint.digests import new_digest
from trajload.checkpoint.entries import FileEntry
from trajload.errors import CheckpointCorruptError, TrajloadError

__all__ = ["Kept", "PlannedFile", "Written", "kept_of", "sample_of", "write_files"]

_log = logging.getLogger("trajload")

_SAMPLE_BYTES = 256
"""Of the beginning and the end of each chunk; a chunk is a tensor or a piece of one."""
_WORTH_REFERRING = 64 * 1024
"""Bytes below which a file is written again: a reference would keep the folder of an old generation alive for nothing."""
_SAMPLES = "samples"


class PlannedFile(Protocol):
    """A file to be written, as a snapshot gives it; `chunks` gives the same bytes each time it is called."""

    @property
    def name(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def chunks(self) -> Callable[[], Iterable[Any]]: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of the newest checkpoint, and a sample of its bytes."""

    entry: FileEntry
    sample: str


@dataclass(slots=True)
class Written:
    """What `write_files` did."""

    kept: dict[str, Kept] = field(default_factory=dict)
    bytes_written: int = 0
    bytes_referred: int = 0

    @property
    def extra(self) -> dict[str, Any]:
        """For `part.json`, so that a resumed run can compare its first save."""
        return {_SAMPLES: {name: kept.sample for name, kept in self.kept.items() if kept.sample}}


def sample_of(chunks: Iterable[bytes | memoryview]) -> str:
    """Return a digest of a few bytes of each chunk."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        digest.update(len(view).to_bytes(8, "little"))
        digest.update(view[:_SAMPLE_BYTES])
        digest.update(view[-_SAMPLE_BYTES:])
    return digest.hexdigest()


def kept_of(files: Mapping[str, FileEntry], extra: Mapping[str, Any]) -> dict[str, Kept]:
    """Return what of a loaded part may be referred to by the next one."""
    samples = extra.get(_SAMPLES)
    samples = samples if isinstance(samples, Mapping) else {}
    return {name: Kept(entry, samples[name]) for name, entry in files.items() if isinstance(samples.get(name), str)}


def write_files(part: Any, files: Sequence[PlannedFile], before: Mapping[str, Kept]) -> Written:
    """Write `files` into the part of a generation, or refer to equal ones of `before`."""
    done = Written()
    for file in files:
        sample = sample_of(file.chunks()) if file.bytes >= _WORTH_REFERRING else ""
        entry = _refer(part, file, sample, before.get(file.name)) if sample else None
        if entry is not None:
            done.bytes_referred += entry.bytes
        else:
            entry = part.write(file.name, file.chunks())
            done.bytes_written += entry.bytes
        done.kept[file.name] = Kept(entry, sample)
    return done


def _refer(part: Any, file: PlannedFile, sample: str, old: Kept | None) -> FileEntry | None:
    """Return the entry of a reference to `old`, or None where the file has to be written."""
    if old is None or not _is_equal(file, sample, old):
        return None
    try:
        referred: FileEntry = part.refer(file.name, old.entry)
    except CheckpointCorruptError as err:
        # The right bytes are at hand: written again, they end the damage instead of passing it on.
        _log.warning("a file of the checkpoint before is damaged and is written again: %s", err)
        return None
    return referred


def _is_equal(file: PlannedFile, sample: str, old: Kept) -> bool:
    if old.sample != sample or old.entry.bytes != file.bytes:
        return False
    try:
        digest = new_digest(old.entry.digest.split(":")[0])
    except TrajloadError:
        return False  # an algorithm that is not installed here: the file is simply written again
    for chunk in file.chunks():
        digest.update(chunk)
    return digest.text() == old.entry.digest
