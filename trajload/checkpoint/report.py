"""What `Checkpointer.resume` found: which checkpoint a run goes on from, and why."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajload.checkpoint.entries import Commit, Fault

__all__ = ["Report", "told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where a run goes on. `str(report)` is a sentence or a few for the log."""

    commit: Commit | None
    """None for a fresh start."""
    step: int | None
    """The step that was saved: what `Checkpointer.step` was given."""
    next_step: int
    """The next number that `Checkpointer.step` is to be given: `step + 1`, or 0 for a fresh start."""
    fresh: bool
    why: str
    """Why this checkpoint, or why a fresh start."""
    fell_back_from: tuple[Fault, ...] = ()
    """What was wrong with newer checkpoints that were passed over."""
    diffs: tuple[str, ...] = ()
    """What differs from when it was saved and does not forbid to go on: versions, hardware, number of ranks."""

    @classmethod
    def anew(cls, why: str, faults: Sequence[Fault]) -> Report:
        """Return the report of a run that starts from nothing."""
        return cls(commit=None, step=None, next_step=0, fresh=True, why=why, fell_back_from=tuple(faults))

    @classmethod
    def of(cls, commit: Commit, at: int | str | None, faults: Sequence[Fault], diffs: Sequence[str]) -> Report:
        """Return the report of a run that goes on from `commit`, which was asked for as `at`."""
        if at is None:
            why = "the newest whole checkpoint"
        elif isinstance(at, int):
            why = "asked for" if at == commit.step else f"the closest to step {at}, which was asked for"
        else:
            why = f"asked for as {at!r}"
        return cls(
            commit=commit,
            step=commit.step,
            next_step=commit.step + 1,
            fresh=False,
            why=why,
            fell_back_from=tuple(faults),
            diffs=tuple(diffs),
        )

    def __str__(self) -> str:
        if self.commit is None:
            head = f"fresh start: {self.why}"
        else:
            made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.commit.time))
            head = f"going on after step {self.step}, from commit {self.commit.seq} ({self.commit.digest[:19]}, {made}): {self.why}"
        lines = [head, *(f"passed over {told(fault)}" for fault in self.fell_back_from)]
        lines += [f"differs from when it was saved: {line}" for line in self.diffs]
        return "\n  ".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return it for a log of events."""
        return {
            "seq": None if self.commit is None else self.commit.seq,
            "digest": None if self.commit is None else self.commit.digest,
            "step": self.step,
            "next_step": self.next_step,
            "fresh": self.fresh,
            "why": self.why,
            "fell_back_from": [{"seq": f.seq, "path": f.path, "what": f.what} for f in self.fell_back_from],
            "diffs": list(self.diffs),
        }


def told(fault: Fault) -> str:
    """Return which commit a fault is of, and what it is; the path once."""
    where = f"commit {fault.seq}" if fault.seq is not None else fault.path
    path = f" ({fault.path})" if fault.seq is not None and fault.path not in fault.what else ""
    return f"{where}{path}: {fault.what}"
