"""What a store tells of a checkpoint: files, parts, commits, faults, and how many to keep. Plain values, no I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trajload.arguments import explains_calls
from trajload.checkpoint.digests import is_digest
from trajload.errors import CheckpointCorruptError, ConfigError
from trajload.reprs import short_repr

__all__ = ["Commit", "Fault", "FileEntry", "Keep", "PartSummary", "check_keep", "check_path", "record_path"]


def record_path(seq: int) -> str:
    """Return where the record of a sequence number stands."""
    return f"commits/{seq:010d}.json"


def check_path(path: object, *, under: str | None = None) -> str:
    """Return `path` if it is a plain relative path (of `under`), else raise CheckpointCorruptError: it came from a file."""
    if (
        not isinstance(path, str)
        or not path
        or "\x00" in path
        or path.startswith("/")
        or any(piece in ("", ".", "..") for piece in path.split("/"))
        or (under is not None and not path.startswith(under + "/"))
    ):
        below = f" below {under!r}" if under else ""
        raise CheckpointCorruptError(
            f"path {path!r} leaves the store: expected a relative path{below} without '..'. The record is damaged or hostile."
        )
    return path


def _count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointCorruptError(f"field {name!r} is {value!r}: expected an integer of at least 0.")
    return value


def _digest(value: object, name: str) -> str:
    if not is_digest(value):
        raise CheckpointCorruptError(f"field {name!r} is {value!r}: expected a digest like 'sha256:<64 hex digits>'.")
    assert isinstance(value, str)
    return value


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointCorruptError(f"{name} is {type(value).__name__}: expected an object.")
    return value


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of one part. `path` is relative to the store's root; of a reference it lies in an older generation."""

    name: str
    bytes: int
    digest: str
    path: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": self.bytes, "digest": self.digest, "path": self.path}

    @classmethod
    def from_json(cls, value: object) -> FileEntry:
        entry = _mapping(value, "a file entry")
        return cls(
            check_path(entry.get("name")),
            _count(entry.get("bytes"), "bytes"),
            _digest(entry.get("digest"), "digest"),
            check_path(entry.get("path"), under="gen"),
        )


@dataclass(frozen=True, slots=True)
class PartSummary:
    """What a rank votes with: where its part.json stands, and size and digest of that file."""

    rank: int
    path: str
    bytes: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "path": self.path, "bytes": self.bytes, "digest": self.digest}

    @classmethod
    def from_json(cls, value: object) -> PartSummary:
        part = _mapping(value, "a part")
        return cls(
            _count(part.get("rank"), "rank"),
            check_path(part.get("path"), under="gen"),
            _count(part.get("bytes"), "bytes"),
            _digest(part.get("digest"), "digest"),
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """One published checkpoint. Equal digests mean equal checkpoints, byte by byte."""

    seq: int
    step: int
    digest: str
    """Of the record, which names the digest of every part, which names the digest of every file."""
    time: float
    world: int
    parent: str | None
    """Digest of the record before this one when it was published."""
    parts: tuple[PartSummary, ...]
    info: Mapping[str, Any]
    """Whatever the caller put: loader state, hashes, versions, metrics."""
    generation: str = ""
    """Folder of its files, relative to the root."""
    nonce: str = ""
    epoch: int = 0
    """Of the writer: each one that opens the store for writing counts one up."""
    parent_seq: int | None = None
    refers: tuple[str, ...] = ()
    """Files of older generations that this commit uses."""
    bytes: int = 0
    """Of all its files, references included."""
    written_bytes: int = 0
    """Of the files written for it; the difference to `bytes` is what references saved."""
    durability: str = ""
    store: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the body of the record: all but the digest, which is computed of it."""
        return {
            "seq": self.seq,
            "step": self.step,
            "time": self.time,
            "world": self.world,
            "parent": self.parent,
            "parent_seq": self.parent_seq,
            "parts": [part.to_json() for part in self.parts],
            "info": self.info,
            "generation": self.generation,
            "nonce": self.nonce,
            "epoch": self.epoch,
            "refers": list(self.refers),
            "bytes": self.bytes,
            "written_bytes": self.written_bytes,
            "durability": self.durability,
            "store": self.store,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any], digest: str) -> Commit:
        """Return the commit of a record's body; CheckpointCorruptError where a field is not what it should be."""
        time, parent, info = body.get("time"), body.get("parent"), body.get("info")
        if not isinstance(time, (int, float)) or not math.isfinite(time):
            raise CheckpointCorruptError(f"field 'time' is {time!r}: expected seconds.")
        lists = {name: body.get(name) for name in ("parts", "refers")}
        for name, value in lists.items():
            if not isinstance(value, list):
                raise CheckpointCorruptError(f"field {name!r} is {value!r}: expected a list.")
        parts = tuple(PartSummary.from_json(part) for part in lists["parts"] or ())
        world = _count(body.get("world"), "world")
        if [part.rank for part in parts] != list(range(world)) or not parts:
            raise CheckpointCorruptError(
                f"parts are of ranks {[p.rank for p in parts]}: expected one of each of {world}."
            )
        texts = {name: body.get(name) for name in ("nonce", "durability", "store")}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise CheckpointCorruptError(f"field {name!r} is {value!r}: expected text.")
        return cls(
            seq=_count(body.get("seq"), "seq"),
            step=_count(body.get("step"), "step"),
            digest=digest,
            time=float(time),
            world=world,
            parent=None if parent is None else _digest(parent, "parent"),
            parts=parts,
            info=_mapping(info, "field 'info'"),
            generation=check_path(body.get("generation"), under="gen"),
            nonce=str(texts["nonce"]),
            epoch=_count(body.get("epoch"), "epoch"),
            parent_seq=None if parent is None else _count(body.get("parent_seq"), "parent_seq"),
            refers=tuple(check_path(path, under="gen") for path in lists["refers"] or ()),
            bytes=_count(body.get("bytes"), "bytes"),
            written_bytes=_count(body.get("written_bytes"), "written_bytes"),
            durability=str(texts["durability"]),
            store=str(texts["store"]),
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """Something of a store that is not as it should be."""

    seq: int | None
    path: str
    what: str
    kind: str = "damaged"
    """'damaged', 'missing', 'unreadable' (the system refused), 'newer' (a newer format), 'fenced' (by a writer that had
    lost the store), 'foreign' (no file at all, such as a folder) or 'unsure' (left alone since others may be using it)."""

    @property
    def is_removal(self) -> bool:
        """Whether the commit is not damaged, but was removed after it had been listed."""
        return self.kind == "missing" and self.seq is not None and self.path == record_path(self.seq)

    def __str__(self) -> str:
        return self.what if self.path in self.what else f"{self.path}: {self.what}"


_BEST = re.compile(r"(?P<way>min|max):(?P<metric>\S+)")


@explains_calls
@dataclass(frozen=True, slots=True)
class Keep:
    """Which commits retention leaves; all others go once the newest `last` have been verified.

    Args:
        last: The newest so many, at least 1.
        every: Also the first commit at or after each multiple of so many steps; 0 for none.
        best: Also the best by a number of `info["metrics"]`: "min:val_loss" or "max:reward".
        best_count: So many of the best.

    Pinned commits stay in any case.
    """

    last: int = 3
    every: int = 0
    best: str | None = None
    best_count: int = 1
    _metric: tuple[bool, str] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("every", 0), ("best_count", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} is {value!r}: expected an integer of at least {least}.")
        if self.best is not None:
            found = _BEST.fullmatch(self.best) if isinstance(self.best, str) else None
            if found is None:
                raise ConfigError(f"best is {self.best!r}: expected 'min:<metric>' or 'max:<metric>', or None.")
            object.__setattr__(self, "_metric", (found["way"] == "min", found["metric"]))

    __repr__ = short_repr

    @property
    def metric(self) -> tuple[bool, str] | None:
        """(whether smaller is better, name) of `best`."""
        return self._metric


def check_keep(keep: object) -> Keep:
    """Return `keep`, the default for None; ConfigError for anything else."""
    if keep is not None and not isinstance(keep, Keep):
        meant = f" Did you mean tl.Keep(last={keep})?" if isinstance(keep, int) else ""
        raise ConfigError(f"keep={keep!r} is unusable: expected tl.Keep(last=...), or None.{meant}")
    return keep or Keep()
