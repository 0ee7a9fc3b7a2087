"""Which commit a run goes on from, found by all ranks together: rank 0 picks, every rank verifies, all agree or step back.

A commit counts only if every rank has read and verified its share of the files. Nothing of the training state is touched
before that, so a run never starts from half a checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trajload.checkpoint.group import Group, missing
from trajload.checkpoint.report import Report, told
from trajload.errors import (
    CheckpointAbortedError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    TrajloadError,
    described,
)

if TYPE_CHECKING:
    from trajload.checkpoint.entries import Commit, Fault

__all__ = ["Choice", "Finder", "nothing_found"]

_log = logging.getLogger("trajload")


@dataclass(frozen=True, slots=True)
class Choice:
    """What the ranks agreed on."""

    commit: Commit | None
    faults: tuple[Fault, ...]
    """Of newer commits that were passed over."""


@dataclass(frozen=True, slots=True)
class _Picked:
    named: tuple[int, str] | None
    """(seq, digest) that rank 0 has picked."""
    commit: Commit | None
    """None where this rank does not see it."""
    faults: tuple[Fault, ...]


class Finder:
    """Picks a commit with the ranks of a group.

    Args:
        store: The same store on every rank.
        group: Who resumes together.
        timeout_s: How long to wait for the slowest rank to verify its share.
        topic: Names this resume among others of the group.
    """

    def __init__(self, store: Any, group: Group, *, timeout_s: float, topic: str) -> None:
        self._store, self._group = store, group
        self._timeout_s, self._topic = timeout_s, topic
        self._round = 0

    def find(self, at: int | str | None, *, on_bad: str) -> Choice:
        """Return the newest commit that all ranks find whole; with `at` that one and no other.

        Raises:
            CheckpointCorruptError: The chosen one is damaged and `on_bad` is 'error', or `at` was given.
            CheckpointError: `at` names no commit; or a rank did not answer.
        """
        faults: list[Fault] = []
        below: int | None = None
        while True:
            picked = self._pick(at, below)
            faults += [fault for fault in picked.faults if fault not in faults]
            bad = self._verify(picked) if picked.named is not None else []
            if picked.commit is not None and not bad:
                return Choice(picked.commit, tuple(faults))
            faults += bad
            self._refuse(faults, at, on_bad)
            if picked.named is None:
                return Choice(None, tuple(faults))
            below = picked.named[0]
            _log.warning("damaged and passed over: %s", told(bad[0]))

    def _refuse(self, faults: Sequence[Fault], at: int | str | None, on_bad: str) -> None:
        """Raise where a fault is not to be passed over."""
        worst = next((fault for fault in faults if fault.kind != "fenced"), None)
        if worst is not None and (at is not None or on_bad == "error"):
            hint = (
                "Choose another with at=." if at is not None else "Pass on_bad='fallback' to go on from an older one."
            )
            raise CheckpointCorruptError(f"the checkpoint is damaged: {told(worst)} {hint}")

    def _pick(self, at: int | str | None, below: int | None) -> _Picked:
        """Return what rank 0 has picked, as this rank sees it, and what was wrong with newer ones."""
        from trajload.checkpoint.entries import Fault

        commit: Commit | None = None
        said: dict[str, Any] = {}
        failed: Exception | None = None
        if self._group.rank == 0:
            try:
                found: Sequence[Fault] = ()
                if at is not None:
                    commit = self._store.pick(at, verify="sizes")
                else:
                    # Records and sizes; the bytes are read below, by all ranks.
                    commit, found = self._store.newest(verify="sizes", below=below)
                named = None if commit is None else [commit.seq, commit.digest]
                said = {"commit": named, "faults": [_row(fault) for fault in found]}
            except (TrajloadError, OSError) as err:
                failed, said = err, {"error": str(err)}
        self._round += 1
        said = self._group.tell(f"{self._topic}/{self._round}/pick", said, self._timeout_s)
        if failed is not None:
            raise failed
        if "error" in said:
            raise CheckpointError(f"rank 0 found no checkpoint to go on from: {said['error']}")
        faults = tuple(Fault(*fault) for fault in said["faults"])
        if said["commit"] is None:
            return _Picked(None, None, faults)
        seq, digest = said["commit"]
        if self._group.rank != 0:
            # Read anew: what this machine sees of a network disk may be stale.
            same = [commit for commit in self._store.commits() if (commit.seq, commit.digest) == (seq, digest)]
            commit = same[0] if same else None
        return _Picked((seq, digest), commit, faults)

    def _verify(self, picked: _Picked) -> list[Fault]:
        """Return what any rank finds wrong with its share of the commit."""
        from trajload.checkpoint.entries import Fault

        group, commit = self._group, picked.commit
        assert picked.named is not None
        seq, digest = picked.named
        if commit is None:
            mine = [[seq, f"commits/{seq:010d}.json", f"rank {group.rank} does not see {digest}.", "unreadable"]]
        else:
            # Each part is read by one rank, whatever the number of ranks then and now.
            share = [rank for rank in range(commit.world) if rank % group.world == group.rank]
            try:
                mine = [_row(fault) for fault in self._store.verify(commit, level="full", ranks=share)] if share else []
            except (TrajloadError, OSError) as err:  # told like damage: the other ranks wait for an answer
                mine = [[seq, f"commits/{seq:010d}.json", described(err), "unreadable"]]

        def verdict(answers: Mapping[int, Any], absent: list[int]) -> Any:
            if absent:
                return {"error": missing(absent, "the verification", self._timeout_s).message}
            return {"faults": [fault for _, found in sorted(answers.items()) for fault in found]}

        said = group.decide(f"{self._topic}/{self._round}/verify", mine, verdict, self._timeout_s)
        if "error" in said:
            raise CheckpointAbortedError(said["error"])
        return [Fault(*fault) for fault in said["faults"]]

    def together(
        self, work: Callable[[], Any], what: str, *, kind: type[CheckpointError] = CheckpointMismatchError
    ) -> Any:
        """Return what `work` gives here; where it fails on any rank, it fails on all. `what` names it, once for each Finder.

        Raises:
            CheckpointError: Of this `kind`, on ranks where it went well and elsewhere it did not; the others raise their own.
        """
        result, failed = None, None
        try:
            result = work()
        except Exception as err:  # whatever it is, the other ranks must not go on without this one
            failed = err
        mine = None if failed is None else [type(failed).__name__, described(failed)]

        def verdict(answers: Mapping[int, Any], absent: list[int]) -> Any:
            bad = [f"rank {rank}: {answer[1]}" for rank, answer in sorted(answers.items()) if answer]
            if absent:
                bad.append(missing(absent, what, self._timeout_s).message)
            return bad

        if self._group.world > 1:
            bad = self._group.decide(f"{self._topic}/{self._round}/{what}", mine, verdict, self._timeout_s)
        else:
            bad = []
        if failed is not None:
            raise failed
        if bad:
            raise kind(f"{what} failed on other ranks: " + "; ".join(bad))
        return result


def nothing_found(name: str, faults: Sequence[Fault], *, insists: bool) -> Report:
    """Return the report of a run that finds no checkpoint in the store called `name`; CheckpointError where it insists on one."""
    why = f"{name}: {'none of its checkpoints is whole' if faults else 'it holds no checkpoint'}"
    if insists:
        bad = "".join(f"\n  - {told(fault)}" for fault in faults)
        raise CheckpointError(f"nothing to go on from, and resume='on' insists on it. {why}{bad}")
    if faults:
        _log.warning("training starts anew: %s", why)
    return Report.anew(why, faults)


def _row(fault: Fault) -> list[Any]:
    return [fault.seq, fault.path, fault.what, fault.kind]
