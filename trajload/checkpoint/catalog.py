"""What commits a store holds, which of them are whole, and which one a user means. Reads only; relies on no pointer.

The newest checkpoint is the one of the highest sequence number whose record and files verify. A record counts unless it
is torn, is of another store, contradicts the record before it, or was written by a writer that had lost the store.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from trajload.checkpoint.entries import Commit, Fault, check_path, record_path
from trajload.checkpoint.failures import reason
from trajload.checkpoint.medium import Medium
from trajload.checkpoint.reader import check_pieces, read_part
from trajload.checkpoint.record import decode_record
from trajload.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError, ConfigError

__all__ = ["MAX_SEQ", "Level", "Scan", "highest_seq", "newest", "pick_commit", "record_path", "scan", "verify_commit"]

Level: TypeAlias = Literal["full", "sizes", "record"]
LEVELS = ("full", "sizes", "record")

MAX_SEQ = (1 << 62) - 1
_NO_FILE = {errno.EINVAL, errno.EISDIR, errno.EFBIG}
"""What is no regular file, or too large a one, will not become a record by waiting."""
_NAME = re.compile(r"\d{10,19}\.json")


@dataclass
class Scan:
    """The records of a store at one moment."""

    commits: list[Commit] = field(default_factory=list)
    """Those that count, by ascending seq."""
    faults: list[Fault] = field(default_factory=list)
    """Those that do not, and why."""
    highest_seq: int = 0
    """Of any record, good or not: its number is used up."""
    highest_epoch: int = 0

    @property
    def unsure(self) -> list[Fault]:
        """Records that may be whole, but cannot be read here and now: while there are any, nothing may be removed."""
        return [fault for fault in self.faults if fault.kind in ("unreadable", "newer")]


def scan(medium: Medium, store_uuid: str | None) -> Scan:
    """Read all records. Other files in the folder are left alone, whatever they are.

    Args:
        medium: Where the store is.
        store_uuid: Records of another store do not count; None to take any.
    """
    found, last = Scan(), None
    for seq in _numbers(medium):
        path = record_path(seq)
        found.highest_seq = seq
        try:
            commit = read_commit(medium, seq)
            _check_place(commit, last, store_uuid, found.highest_epoch)
        except FileNotFoundError:
            continue  # removed since the folder was listed
        except OSError as err:
            kind = "foreign" if err.errno in _NO_FILE else "unreadable"
            found.faults.append(Fault(seq, path, f"it cannot be read: {reason(err)}.", kind))
        except CheckpointMismatchError as err:
            found.faults.append(Fault(seq, path, err.message, "newer"))
        except CheckpointError as err:
            kind = "fenced" if isinstance(err, _FencedError) else "damaged"
            found.faults.append(Fault(seq, path, err.message, kind))
        else:
            found.commits.append(commit)
            found.highest_epoch = max(found.highest_epoch, commit.epoch)
            last = commit
    return found


def highest_seq(medium: Medium) -> int:
    """Return the highest number of any record, good or not, without reading them; 0 where there is none."""
    return max(_numbers(medium), default=0)


def _numbers(medium: Medium) -> list[int]:
    found = ((int(name[:-5]), name) for name in medium.names("commits") if _NAME.fullmatch(name))
    return sorted(seq for seq, name in found if seq <= MAX_SEQ and record_path(seq) == f"commits/{name}")


def read_commit(medium: Medium, seq: int) -> Commit:
    """Return the commit of one record, checked by itself.

    Raises:
        CheckpointCorruptError: It is torn, altered, or of another number.
        CheckpointMismatchError: It is of a newer format.
        OSError: It cannot be read.
    """
    body, digest = decode_record(medium.read(record_path(seq)), "commit")
    commit = Commit.from_json(body, digest)
    if commit.seq != seq:
        raise CheckpointCorruptError(
            f"the record is of sequence number {commit.seq}: expected {seq}. It was moved or renamed."
        )
    if not all(part.path == f"{commit.generation}/r{part.rank:05d}/part.json" for part in commit.parts):
        raise CheckpointCorruptError(f"the record names parts outside its own generation {commit.generation!r}.")
    return commit


class _FencedError(CheckpointError):
    """The record is of a writer that had lost the store."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


def _check_place(commit: Commit, last: Commit | None, store_uuid: str | None, highest_epoch: int) -> None:
    if store_uuid is not None and commit.store != store_uuid:
        raise CheckpointCorruptError(
            f"the record is of store {commit.store!r}: expected {store_uuid!r}. It was copied here."
        )
    if commit.epoch < highest_epoch:
        raise _FencedError(
            f"the record is of writer epoch {commit.epoch}, after one of epoch {highest_epoch}: its writer had lost the store."
        )
    if last is not None and commit.parent_seq == last.seq and commit.parent != last.digest:
        raise CheckpointCorruptError(
            f"the record follows {commit.parent} of number {last.seq}, which is {last.digest}: it is of another history."
        )


def verify_commit(
    medium: Medium, commit: Commit, level: Level = "full", ranks: Iterable[int] | None = None
) -> list[Fault]:
    """Return all that is wrong with a commit; an empty list where it is whole. Of one that was removed only that is told.

    Args:
        medium: Where the store is.
        commit: From a scan.
        level: "record": its record is still there. "sizes": so are all files, in their sizes. "full": and all bytes.
        ranks: Check these parts only; None for all.
    """
    if level not in LEVELS:
        raise ConfigError(f"level is {level!r}: expected one of {', '.join(map(repr, LEVELS))}.")
    faults = _record_faults(medium, commit)
    if level == "record" or any(fault.is_removal for fault in faults):
        return faults
    for rank in range(commit.world) if ranks is None else ranks:
        try:
            part = read_part(medium, commit, rank)
        except ConfigError:
            raise
        except CheckpointError as err:
            faults.append(Fault(commit.seq, commit.parts[rank].path, err.message))
            continue
        for entry in part.files.values():
            try:
                check_pieces(medium, entry, read=level == "full")
            except CheckpointCorruptError as err:
                faults.append(Fault(commit.seq, entry.path, err.message))
    if faults:  # files go after the record
        return [fault for fault in _record_faults(medium, commit) if fault.is_removal] or faults
    return faults


def _record_faults(medium: Medium, commit: Commit) -> list[Fault]:
    path = record_path(commit.seq)
    try:
        now = read_commit(medium, commit.seq)
    except FileNotFoundError:
        return [Fault(commit.seq, path, "the record is gone: the commit was removed.", "missing")]
    except OSError as err:
        return [Fault(commit.seq, path, f"it cannot be read: {reason(err)}.", "unreadable")]
    except CheckpointError as err:
        return [Fault(commit.seq, path, err.message)]
    if now.digest != commit.digest:
        return [Fault(commit.seq, path, f"the record is {now.digest}, expected {commit.digest}: it was replaced.")]
    return []


_LOOKS = 10
"""So often the newest commit is looked for where others remove what was found."""


def newest(
    medium: Medium, look: Callable[[], Scan], level: Level, below: int | None
) -> tuple[Commit | None, list[Fault]]:
    """Return the newest commit that verifies, and what was passed over on the way to it.

    Whoever writes the store may remove all that was listed, while the newest of it is being read, since there are newer ones by
    then: so the list is read again where a commit has gone.

    Raises:
        CheckpointMismatchError: A record of a newer format is newer than it: stepping back over that would lose work.
        CheckpointError: Commits go faster than they can be read.
    """
    for _ in range(_LOOKS):
        commit, faults = _newest_of(medium, look(), level, below)
        if not any(fault.is_removal for fault in faults):
            return commit, faults
    if commit is None:
        raise CheckpointError(
            f"checkpoints of {medium.name!r} were removed while they were read, {_LOOKS} times: whoever writes the store keeps too "
            "few of them. Let it keep more, pin one and take that, or verify less."
        )
    return commit, [fault for fault in faults if not fault.is_removal]


def _newest_of(medium: Medium, found: Scan, level: Level, below: int | None) -> tuple[Commit | None, list[Fault]]:
    limit = MAX_SEQ + 1 if below is None else below
    passed = sorted((f for f in found.faults if (f.seq or 0) < limit), key=lambda f: -(f.seq or 0))
    skipped: list[Fault] = []
    for commit in reversed(found.commits):
        if commit.seq >= limit:
            continue
        _refuse_newer([f for f in passed if (f.seq or 0) > commit.seq])
        faults = verify_commit(medium, commit, level)
        if not faults:
            return commit, [*[f for f in passed if (f.seq or 0) > commit.seq], *skipped]
        skipped += faults
    _refuse_newer(passed)
    return None, [*passed, *skipped]


def _refuse_newer(faults: list[Fault]) -> None:
    for fault in faults:
        if fault.kind == "newer":
            raise CheckpointMismatchError(f"checkpoint record {fault.path!r}: {fault.what}")


_PREFIX = re.compile(r"(?:[a-z][a-z0-9_]*:)?(?P<hex>[0-9a-f]{4,64})")


def pick_commit(commits: list[Commit], at: int | str) -> Commit:
    """Return the commit a user means: the closest to a step (ties to the higher, then the later), or by its digest.

    Raises:
        ConfigError: There is none like that, or several are.
    """
    if isinstance(at, bool) or not isinstance(at, (int, str)) or (isinstance(at, int) and at < 0):
        raise ConfigError(
            f"at is {at!r}: expected a step of at least 0, the beginning of a digest, 'pin:<name>', or None for the newest."
        )
    if not commits:
        raise ConfigError(f"no checkpoint for at={at!r}: the store holds none.")
    if isinstance(at, int):
        return min(commits, key=lambda c: (abs(c.step - at), -c.step, -c.seq))
    if _PREFIX.fullmatch(at) is None:
        raise ConfigError(
            f"at is {at!r}: expected a step, or at least 4 hex digits of a digest, such as 'sha256:3fa9'."
        )
    fits = [c for c in commits if c.digest.startswith(at) or c.digest.partition(":")[2].startswith(at)]
    if len(fits) != 1:
        known = ", ".join(f"{c.digest[:19]} (step {c.step})" for c in (fits or commits)[-8:])
        what = "several checkpoints have" if fits else "no checkpoint has"
        raise ConfigError(f"{what} a digest that begins with {at!r}. There are: {known}.")
    return fits[0]


def live_files(commits: Iterable[Commit]) -> tuple[set[str], set[str]]:
    """Return what must stay for these commits: their own generations, and files that they use of others."""
    own: set[str] = set()
    used: set[str] = set()
    for commit in commits:
        own.add(check_path(commit.generation, under="gen"))
        used.update(commit.refers)
    return own, used
