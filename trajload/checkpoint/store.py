"""A folder of checkpoints that survives kills and power cuts, and never gives back what was not wholly saved.

    >>> store = Store("runs/exp1/checkpoints")                                    # doctest: +SKIP
    >>> with store.writer():                                                      # doctest: +SKIP
    ...     generation = store.begin(step=1000)
    ...     part = generation.part(0)
    ...     part.write("model.safetensors", chunks)
    ...     commit = store.commit(generation, [part.finish()], info={})
    >>> store.newest()                                                            # doctest: +SKIP

A commit is one record in `commits/`, which appears whole or not at all after everything it names is on the disk. There
is no pointer to keep right: the newest checkpoint is the highest number that verifies. See docs/decisions/0110.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trajload.arguments import explains_calls
from trajload.checkpoint import identity, promote
from trajload.checkpoint.catalog import (
    MAX_SEQ,
    Level,
    Scan,
    highest_seq,
    newest,
    pick_commit,
    record_path,
    scan,
    verify_commit,
)
from trajload.checkpoint.disk import Disk
from trajload.checkpoint.entries import Commit, Fault, Keep, PartSummary
from trajload.checkpoint.failures import aborting, refusing
from trajload.checkpoint.generation import Generation, generation_path
from trajload.checkpoint.lock import Lock, WriterLock
from trajload.checkpoint.medium import LocalMedium, Medium
from trajload.checkpoint.pins import PIN_LOCK, check_name, publish_pin, read_pin_digests, read_pins
from trajload.checkpoint.publish import publish_commit
from trajload.checkpoint.reader import PartReader, read_part
from trajload.checkpoint.record import encode_record
from trajload.checkpoint.retention import victims
from trajload.checkpoint.sweep import refuse_lost_records, sweep_generations, sweep_temporary
from trajload.errors import CheckpointCorruptError, CheckpointError, CheckpointSpaceError, ConfigError

__all__ = ["Store"]

_SPARE = 1.1
"""Free space asked for, as a multiple of what is planned: metadata, and others who write meanwhile."""

ABANDONED_AFTER_S = 24 * 3600.0
"""Where no lock keeps others out, a generation that has grown no more for so long is nobody's."""


@explains_calls
class Store:
    """The checkpoints of one training, in one folder of a local or mounted file system.

    Reading needs no lock. Thread-safe; ranks in other processes open the same folder and `join` a generation.

    Args:
        root: The folder.
        disk: Does all changes to files; for tests.
        create: Make the store where there is none, else CheckpointError.
    """

    def __init__(self, root: str | os.PathLike[str], *, disk: Disk | None = None, create: bool = True) -> None:
        self.root = Path(os.path.abspath(root))
        medium = LocalMedium(self.root, disk or Disk())
        with refusing(f"opening checkpoint store {medium.name!r}"):
            identity.check_folders(self.root)
            if create:
                identity.make_root(self.root, medium.disk)
        self._open(medium, WriterLock(medium.disk, self.root / "writer.lock"), create)

    def _open(self, medium: Medium, lock: Lock, create: bool) -> None:
        self._medium = medium
        self._lock = lock
        with refusing(f"opening checkpoint store {medium.name!r}"):
            self.uuid, self._own_faults = identity.identify(medium, create=create)
        self.faults: list[Fault] = list(self._own_faults)
        """What the last listing, retention or sweep passed over or would not do, and why."""
        self._rules = threading.RLock()
        self._begun: set[str] = set()
        self._verified: set[str] = set()
        self._probed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def name(self) -> str:
        """For messages: the folder."""
        return self._medium.name

    @property
    def durability(self) -> str:
        """What commits promise here: 'file+dir', 'file', 'none'; tried on first asking, 'unknown' where that is refused."""
        if not self._probed:
            with contextlib.suppress(CheckpointError, OSError), self.writer():
                self._prepare()
        return self._medium.durability

    # ---- writing ----

    @contextlib.contextmanager
    def writer(self) -> Iterator[None]:
        """Hold the store for writing; again inside is allowed. Keep it as long as a generation is being written.

        Raises:
            WriterConflictError: Another process has it; the message says which.
            CheckpointError: The folder cannot be written.
        """
        with refusing(f"opening checkpoint store {self.name!r} for writing"):
            self._lock.acquire(lambda: scan(self._medium, self.uuid).highest_epoch)
        try:
            yield
        finally:
            self._lock.release()

    def _prepare(self) -> None:
        """Find out what commits may promise; once, and not before one is begun: on a full disk one may still remove."""
        if not self._probed:
            self._medium.probe(os.urandom(8).hex(), locks=self._lock.works)
            self._own_faults = identity.repair_identity(self._medium, self.uuid, self._own_faults)
            self._probed = True

    def _need_writer(self, what: str) -> None:
        if not self._lock.held:
            raise CheckpointError(f"{what} needs the store's writer: use it inside `with store.writer():`.")

    def begin(self, step: int, *, world: int = 1, need_bytes: int = 0, nonce: str | None = None) -> Generation:
        """Begin a checkpoint of `step`, by rank 0 and under `writer`; other ranks `join` it.

        Args:
            step: The training step whose state it holds.
            world: How many parts it will have.
            need_bytes: What is planned; refused before any write where the free space is not 1.1 times that.
            nonce: Text that no other attempt has; made up where it is None.

        Raises:
            CheckpointSpaceError: It does not fit. Nothing was written.
            CheckpointAbortedError: The system refused.
        """
        self._need_writer("begin")
        for label, value, least in (("step", step, 0), ("world", world, 1), ("need_bytes", need_bytes, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_SEQ:
                raise ConfigError(f"{label} is {value!r}: expected an integer from {least} to {MAX_SEQ}.")
        with self._rules, aborting(f"beginning a checkpoint of step {step}"):
            self._check_space(need_bytes)
            self._prepare()
            seq = highest_seq(self._medium) + 1
            refuse_lost_records(self._medium, seq - 1)
            if seq > MAX_SEQ:
                raise CheckpointError(
                    f"{self.name!r} has used up its sequence numbers: look at {record_path(seq - 1)!r}."
                )
            nonce = nonce or os.urandom(8).hex()
            generation = Generation(self._medium, generation_path(seq, step, nonce), nonce, world)
            self._medium.make_folder(generation.path)
            self._begun.add(generation.path)
        return generation

    def _check_space(self, need_bytes: int) -> None:
        free = self._medium.free_bytes()
        if free is not None and need_bytes * _SPARE > free:
            raise CheckpointSpaceError(
                f"a checkpoint of {need_bytes} bytes ({need_bytes / 2**20:,.1f} MiB) does not fit into {self.name!r}: got {free} "
                f"bytes free ({free / 2**20:,.1f} MiB), expected {_SPARE} times its size. Free space, or keep fewer checkpoints."
            )

    def join(self, path: str, nonce: str) -> Generation:
        """Return the generation that rank 0 has begun, for another rank."""
        return Generation(self._medium, path, nonce)

    def commit(self, generation: Generation, parts: Sequence[PartSummary], info: Mapping[str, Any]) -> Commit:
        """Publish a generation: from the moment this returns it survives a power cut, as far as `durability` says.

        All part.json are read, and the sizes of all files looked at. `info` takes JSON values.

        Raises:
            CheckpointAbortedError: A part is missing or not what its rank voted for, or the system refused.
            WriterConflictError: Another writer published this number first, or took the store over.
        """
        self._need_writer("commit")
        with self._rules:
            commit = publish_commit(self._medium, self.uuid, self._lock, generation, parts, info)
            self._begun.discard(generation.path)
            data, _ = encode_record("latest", {"seq": commit.seq, "step": commit.step, "digest": commit.digest})
            with contextlib.suppress(OSError):
                self._medium.hint("LATEST", data, os.urandom(8).hex())
        return commit

    def abandon(self, generation: Generation) -> None:
        """Remove a generation that will not be committed. What the system will not remove is swept later."""
        with self._rules:
            generation.fail("it was abandoned.")
            begun_here = generation.path in self._begun
            self._begun.discard(generation.path)
            if generation.committed or not begun_here or not (self._lock.works or self._lock.held):
                return
            with contextlib.suppress(OSError, CheckpointError), self.writer():
                found = scan(self._medium, self.uuid)
                sweep_generations(self._medium, found, begun=self._begun, abandoned={generation.path}.__contains__)

    # ---- reading ----

    def _scan(self) -> Scan:
        with refusing(f"listing checkpoint store {self.name!r}"):
            found = scan(self._medium, self.uuid)
        self.faults = [*self._own_faults, *found.faults]
        return found

    def commits(self) -> list[Commit]:
        """Return all commits whose records are whole, by ascending seq; `faults` says what was passed over and why."""
        return self._scan().commits

    def newest(self, *, verify: Level = "full", below: int | None = None) -> tuple[Commit | None, list[Fault]]:
        """Return the newest commit that verifies, None where there is none, and what was passed over; also beside a writer.

        Args:
            verify: How much must be right: "full" reads all bytes, "sizes" looks at all files, "record" at the record.
            below: Only commits of a lower seq.

        Raises:
            CheckpointMismatchError: A newer format is newer than it.
            CheckpointError: Commits go faster than they can be verified.
        """
        return newest(self._medium, self._scan, verify, below)

    def pick(self, at: int | str | None = None, *, verify: Level = "full") -> Commit:
        """Return the commit closest to a step (ties to the higher), of a digest or "pin:<name>", or the newest good one.

        Raises:
            ConfigError: There is none like that.
            CheckpointCorruptError: The one meant does not verify.
        """
        if at is None:
            commit, faults = self.newest(verify=verify)
            if commit is None:
                said = "; ".join(map(str, faults[:5])) or "it holds none."
                raise CheckpointCorruptError(f"no checkpoint of {self.name!r} can be used: {said}")
            return commit
        if isinstance(at, str) and at.startswith("pin:"):
            pins = self.pins()
            if at[4:] not in pins:
                raise ConfigError(f"no pin {at[4:]!r} in {self.name!r}: there are {sorted(pins)}.")
            commit = pins[at[4:]]
        else:
            commit = pick_commit(self._scan().commits, at)
        if faults := self.verify(commit, verify):
            raise CheckpointCorruptError(
                f"checkpoint of step {commit.step} (seq {commit.seq}) cannot be used: {'; '.join(map(str, faults[:5]))} "
                "Pick another one, or take the newest."
            )
        return commit

    def verify(self, commit: Commit, level: Level = "full", ranks: Iterable[int] | None = None) -> list[Fault]:
        """Return all that is wrong with a commit; an empty list where it is whole."""
        with refusing(f"verifying checkpoint {commit.seq}"):
            faults = verify_commit(self._medium, commit, level, ranks)
        if level == "full" and ranks is None:
            (self._verified.discard if faults else self._verified.add)(commit.digest)
        return faults

    def part(self, commit: Commit, rank: int) -> PartReader:
        """Return a rank's part: its files, and what was kept with them."""
        return read_part(self._medium, commit, rank)

    # ---- what stays, and what goes ----

    def pin(self, name: str, commit: Commit) -> None:
        """Give a commit a name; retention leaves it until it is unpinned. Needs no writer lock."""
        with refusing(f"pinning {name!r}"), self._medium.exclusive(PIN_LOCK):
            check_name(name)
            if self.verify(commit, "record"):
                raise CheckpointError(f"commit {commit.seq} (step {commit.step}) is not in {self.name!r} any more.")
            publish_pin(self._medium, name, commit, os.urandom(8).hex())
            if self.verify(commit, "record"):  # where nothing keeps others out: removed meanwhile
                self._medium.remove(f"pins/{name}.json")
                raise CheckpointError(
                    f"commit {commit.seq} (step {commit.step}) was removed while it was being pinned."
                )

    def unpin(self, name: str) -> None:
        """Take a pin away; ConfigError where there is none."""
        path = f"pins/{check_name(name)}.json"
        with refusing(f"unpinning {name!r}"), self._medium.exclusive(PIN_LOCK):
            if f"{name}.json" not in self._medium.names("pins"):
                raise ConfigError(f"no pin {name!r} in {self.name!r}: there are {sorted(self.pins())}.")
            self._medium.remove(path)
            self._medium.settle(["pins"])

    def pins(self) -> dict[str, Commit]:
        """Return pinned commits by name; `faults` says which pins cannot be read or have lost their commit."""
        found = self._scan()
        with refusing(f"reading the pins of {self.name!r}"):
            pins, faults = read_pins(self._medium, found)
        self.faults += faults
        return pins

    def retain(self, keep: Keep, *, verify: Level = "full") -> list[Commit]:
        """Remove the commits that `keep` does not, and return them, once the newest `keep.last` have been verified.

        Nothing is removed while fewer verify, or while a record or pin cannot be read; `faults` then says so.

        Args:
            keep: The rule.
            verify: How much of them must be right. In full each is read once by one Store, not at every call.
        """
        with contextlib.ExitStack() as holds:
            holds.enter_context(refusing(f"removing checkpoints of {self.name!r}"))
            holds.enter_context(self.writer())
            good, bad = self._newest_good(keep.last, verify)  # may take long: saves go on meanwhile
            holds.enter_context(self._rules)
            with self._medium.exclusive(PIN_LOCK):
                gone, damaged = self._choose(keep, good)
                self.faults += bad
                for seq in [*damaged, *(commit.seq for commit in gone)]:
                    self._medium.remove(record_path(seq))
                if gone or damaged:
                    # Durable first: else a power cut could bring back a record whose files are gone.
                    self._medium.settle(["commits"])
                if gone and not self._lock.works:
                    gone = self._without_pinned_meanwhile(gone)
            if gone or damaged:
                lent = ("/".join(path.split("/")[:2]) for commit in gone for path in commit.refers)
                self._sweep_generations({commit.generation for commit in gone}.union(lent))
        return gone

    def _without_pinned_meanwhile(self, gone: list[Commit]) -> list[Commit]:
        """Bring back what was pinned while its record went: whoever pinned it may have seen the record afterwards."""
        left = []
        for commit in gone:
            if commit.digest in read_pin_digests(self._medium):
                self._medium.publish(
                    record_path(commit.seq), encode_record("commit", commit.to_json())[0], commit.nonce
                )
            else:
                left.append(commit)
        return left

    def _sweep_generations(self, dead: Collection[str]) -> list[str]:
        return sweep_generations(
            self._medium,
            self._scan(),
            begun=self._begun,
            abandoned=lambda path: path in dead or self._is_abandoned(path),
        )

    def _is_abandoned(self, path: str) -> bool:
        """Whether a generation that no record names is nobody's: under a lock that works, whoever began it is dead."""
        return self._lock.works or self._medium.age_s(path) > ABANDONED_AFTER_S

    def _newest_good(self, count: int, level: Level) -> tuple[list[Commit], list[Fault]]:
        good: list[Commit] = []
        bad: list[Fault] = []
        for commit in reversed(self._scan().commits):
            if len(good) == count:
                break
            faults = [] if commit.digest in self._verified else self.verify(commit, level)
            bad += faults
            if not faults:
                good.append(commit)
        return good, bad

    def _choose(self, keep: Keep, good: list[Commit]) -> tuple[list[Commit], list[int]]:
        found = self._scan()
        pins, pin_faults = read_pins(self._medium, found)
        self.faults += pin_faults
        good = [commit for commit in good if commit in found.commits]
        if found.unsure or len(good) < keep.last or any(fault.kind == "unreadable" for fault in pin_faults):
            return [], []
        gone = victims(found.commits, keep, good=good, pinned=[commit.digest for commit in pins.values()])
        pinned_seqs = {fault.seq for fault in pin_faults}
        old = [f for f in found.faults if f.kind in ("damaged", "fenced") and f.seq not in pinned_seqs]
        damaged = [fault.seq for fault in old if fault.seq is not None and fault.seq < good[-1].seq]
        return gone, damaged

    def sweep(self) -> list[str]:
        """Remove what saves that ended early left behind, and return it. Under the writer lock nobody else writes."""
        with self.writer(), self._rules, refusing(f"sweeping {self.name!r}"):
            removed = self._sweep_generations(())
            if not self._lock.works:
                what = "unknown generations are left: others may be writing, and nothing here keeps them out."
                self.faults.append(Fault(None, "gen", what, "unsure"))
                return removed
            with self._medium.exclusive(PIN_LOCK):
                return [*removed, *sweep_temporary(self._medium)]

    def promote(self, commit: Commit, to: Store) -> Commit:
        """Copy a commit into another store, checking every byte; see `trajload.checkpoint.promote`."""
        return promote.promote(self, commit, to)
