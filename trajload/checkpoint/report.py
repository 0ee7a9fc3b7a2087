"""What `Checkpointer.resume` found: which checkpoint a run goes on from, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajload.checkpoint.entries import Commit, Fault

__all__ = ["Report"]


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

    def __str__(self) -> str:
        if self.commit is None:
            head = f"fresh start: {self.why}"
        else:
            head = f"going on after step {self.step} from commit {self.commit.seq} ({self.commit.digest}): {self.why}"
        lines = [head, *(f"passed over {_where(fault)}: {fault.what}" for fault in self.fell_back_from), *self.diffs]
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


def _where(fault: Fault) -> str:
    return fault.path if fault.seq is None else f"commit {fault.seq} ({fault.path})"
