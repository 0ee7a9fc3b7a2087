"""What saving has cost so far."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajload.checkpoint.saving import Saved

__all__ = ["Stats"]


@dataclass(slots=True)
class Stats:
    """Counters of one Checkpointer; times in seconds."""

    saves: int = 0
    """Committed."""
    aborted: int = 0
    skipped: int = 0
    """Due while another was being written, under `when_busy='skip'`."""
    tries: int = 0
    """Of the saves that committed; more than `saves` where some were tried again."""
    blocked_s: float = 0.0
    """That training waited for saves: copying, agreeing with other ranks, and in mode 'sync' writing."""
    blocked_last_s: float = 0.0
    waited_s: float = 0.0
    """Of that, for the save before to be finished."""
    write_s: float = 0.0
    """From the begin of writing to the commit."""
    bytes_written: int = 0
    """By this rank."""
    bytes_referred: int = 0
    """Of this rank's files that were as before, and were not written again."""
    state_bytes: int = 0
    """Of this rank's files in the last save, written or not."""

    def add(self, saved: Saved) -> None:
        """Count a save that was committed."""
        self.saves += 1
        self.tries += saved.attempts
        self.write_s += saved.seconds
        self.bytes_written += saved.bytes_written
        self.bytes_referred += saved.bytes_referred

    def to_json(self) -> dict[str, Any]:
        """Return all counters, and the write speed over all saves."""
        speed = self.bytes_written / self.write_s if self.write_s else 0.0
        return {**asdict(self), "bytes_per_s": speed}
