"""One save, from the first byte to the commit: every rank writes its part and votes, rank 0 publishes or calls it off.

    rank 0: begin a generation ──tell──▶ all: write, sync, vote ──▶ rank 0: commit ──tell──▶ all: the outcome

Runs in the thread of the training loop or in another one; it touches nothing of the training state, only what the
snapshot holds. A save that fails for a reason that may pass is tried again in a new generation, by all ranks together.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trajload.checkpoint.group import Group, missing
from trajload.checkpoint.part_files import Kept, PlannedFile, Written, write_files
from trajload.errors import (
    CheckpointAbortedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointSpaceError,
    TrajloadError,
    WriterConflictError,
    described,
)

__all__ = ["Plan", "Saved", "Saver"]

_log = logging.getLogger("trajload")

_HOPELESS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
"""What does not pass by waiting a moment."""
_KINDS: dict[str, type[CheckpointError]] = {
    kind.__name__: kind for kind in (CheckpointSpaceError, WriterConflictError, CheckpointMismatchError)
}
"""Errors of another rank that come out as what they are; all others as an aborted save."""
_PAUSE_S = 0.2
"""Before the second try; twice as long before each further one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a save needs: nothing in it is shared with the training state."""

    step: int
    nonce: str
    files: Sequence[PlannedFile]
    """Of this rank."""
    adopt: Callable[[Any], None] | None = None
    """Writes sharded tensors into the part; see `sharded.py`."""
    need_bytes: int = 0
    """Of all ranks together; rank 0 compares it with the free space before anything is written."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """For the commit record; of rank 0."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A save that was committed."""

    seq: int
    step: int
    digest: str
    """Of the commit; the same on every rank."""
    bytes_written: int
    """Of this rank."""
    bytes_referred: int
    """Of files that were as before, and were not written again."""
    seconds: float
    attempts: int


class Saver:
    """Carries out plans, one at a time, and remembers the files of the newest commit for the next one.

    Args:
        store: The same store on every rank.
        group: Who saves together.
        timeout_s: How long rank 0 waits for the slowest rank once its own part is written.
        retries: Further tries of a save that failed for a reason that may pass.
        reached: Called with the name of each step of the protocol; tests kill the process there.
    """

    def __init__(
        self,
        store: Any,
        group: Group,
        *,
        timeout_s: float,
        retries: int,
        reached: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._store, self._group = store, group
        self._timeout_s, self._retries = timeout_s, retries
        self._reached = reached
        self.kept: Mapping[str, Kept] = {}
        """Files of this rank in the newest commit."""

    def save(self, plan: Plan) -> Saved:
        """Write `plan`, and return once it is committed.

        Raises:
            CheckpointError: It was not; no rank has committed it, but where rank 0 died between publishing and saying so.
        """
        begin = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            try:
                outcome, written = self._attempt(plan, f"{plan.nonce}{attempt:02d}", is_last=attempt > self._retries)
            except _TryAgainError as again:
                _log.warning("save of step %d is tried again (%d of %d): %s", plan.step, attempt, self._retries, again)
                time.sleep(_PAUSE_S * 2 ** (attempt - 1))
                continue
            self.kept = written.kept
            seconds = time.monotonic() - begin
            return Saved(
                outcome["seq"],
                plan.step,
                outcome["digest"],
                written.bytes_written,
                written.bytes_referred,
                seconds,
                attempt,
            )

    def _attempt(self, plan: Plan, nonce: str, is_last: bool) -> tuple[dict[str, Any], Written]:
        """Return the outcome of one generation; raises _TryAgainError on every rank alike."""
        generation, failed, vote = self._begin(plan, nonce)
        written = Written()
        if not vote:
            try:
                written, summary = self._write(plan, generation)
                vote = {"part": summary.to_json()}
            except (KeyboardInterrupt, SystemExit):
                if self._group.world == 1:  # else others are writing in it; the next writer sweeps it
                    self._abandon(generation)
                raise
            except Exception as err:  # also a device's, or for want of memory: the other ranks wait for this vote
                failed, vote = err, _told(err)
        self._reached("voting")
        try:
            outcome = self._group.decide(
                f"save/{nonce}/vote",
                vote,
                lambda votes, absent: self._count(plan, generation, votes, absent, is_last),
                self._timeout_s,
                is_bad=lambda answer: "error" in answer,
            )
        except CheckpointAbortedError as err:
            raise err from failed
        self._reached("told")
        if "error" not in outcome:
            return outcome, written
        if outcome["again"]:
            raise _TryAgainError(outcome["error"])
        raise _KINDS.get(outcome["kind"], CheckpointAbortedError)(outcome["error"]) from failed

    def _begin(self, plan: Plan, nonce: str) -> tuple[Any, Exception | None, dict[str, Any]]:
        """Return this rank's generation; or why there is none, and its vote. Rank 0 makes it, the others join it."""
        generation, failed, said = None, None, {}
        if self._group.rank == 0:
            try:
                generation = self._store.begin(
                    plan.step, world=self._group.world, need_bytes=plan.need_bytes, nonce=nonce
                )
                said = {"path": generation.path}
            except Exception as err:
                failed, said = err, _told(err)
        self._reached("begun")
        said = self._group.tell(f"save/{nonce}/begun", said, self._timeout_s)
        if "error" in said or self._group.rank == 0:
            return generation, failed, said if "error" in said else {}
        try:
            return self._store.join(said["path"], nonce), None, {}
        except Exception as err:
            return None, err, _told(err)

    def _write(self, plan: Plan, generation: Any) -> tuple[Written, Any]:
        part = generation.part(self._group.rank)
        self._reached("part made")
        if plan.adopt is not None:
            plan.adopt(part)
        written = write_files(part, plan.files, self.kept)
        self._reached("files written")
        summary = part.finish(written.extra)
        self._reached("part finished")
        return written, summary

    def _count(
        self, plan: Plan, generation: Any, votes: Mapping[int, Any], absent: Sequence[int], is_last: bool
    ) -> dict[str, Any]:
        """Commit if all ranks have voted for it; on rank 0."""
        from trajload.checkpoint.entries import PartSummary

        bad = {rank: vote for rank, vote in votes.items() if "error" in vote}
        try:
            if bad:
                rank, vote = min(bad.items())
                self._abandon(generation)
                where = f"rank {rank}: " if self._group.world > 1 else ""
                again = not is_last and all(vote["again"] for vote in bad.values())
                return {**vote, "error": where + vote["error"], "again": again}
            if absent:
                self._abandon(generation)
                return {
                    **_told(missing(list(absent), f"the vote on step {plan.step}", self._timeout_s)),
                    "again": False,
                }
            self._reached("committing")
            parts = [PartSummary.from_json(vote["part"]) for _, vote in sorted(votes.items())]
            commit = self._store.commit(generation, parts, plan.info)
            self._reached("committed")
            return {"seq": commit.seq, "digest": commit.digest}
        except Exception as err:
            if not isinstance(err, (TrajloadError, OSError)):
                _log.exception("committing step %d failed", plan.step)  # what is told to other ranks has no traceback
            told = _told(err)
            return {**told, "again": told["again"] and not is_last}

    def _abandon(self, generation: Any) -> None:
        if generation is None:
            return
        try:
            self._store.abandon(generation)
        except (TrajloadError, OSError) as err:  # it is swept when the store is next opened for writing
            _log.warning("what an aborted save has written could not be removed: %s", described(err))


class _TryAgainError(Exception):
    """A save did not commit, and all ranks have agreed to try again."""


def _told(err: Exception) -> dict[str, Any]:
    """Return an error as it is told to other ranks."""
    text = err.message if isinstance(err, TrajloadError) else described(err)
    return {"error": text, "kind": type(err).__name__, "again": _may_pass(err)}


def _may_pass(err: BaseException | None) -> bool:
    """Whether a save may go well if it is tried again: the cause counts where there is one."""
    if isinstance(err, OSError):
        return err.errno not in _HOPELESS
    if not isinstance(err, TrajloadError):
        return False
    if isinstance(err, (CheckpointSpaceError, WriterConflictError, CheckpointMismatchError)):
        return False
    return _may_pass(err.__cause__)
