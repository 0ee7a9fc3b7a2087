"""Cleaning a store up, as a command does it beside any training: leftovers first, then old checkpoints, or only saying which."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from trajload.checkpoint.entries import Commit, Fault, Keep
from trajload.checkpoint.rehearsal import rehearsing

__all__ = ["Cleaned", "clean"]


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What went, or would go."""

    removed: list[Commit]
    swept: list[str]
    """Generations and temporary files of saves that did not commit."""
    faults: list[Fault]
    """Who writes the store, and what was passed over or left alone."""


def clean(store: Any, keep: Keep | None, *, dry_run: bool) -> Cleaned:
    """Remove what saves that ended early have left, and the commits that `keep` does not; None for none of them.

    Args:
        store: A `Store`.
        keep: The rule.
        dry_run: Remove nothing and take no lock; see `rehearsing`.

    Raises:
        WriterConflictError: Somebody writes the store.
        CheckpointError: The system refused.
    """
    with contextlib.ExitStack() as holds:
        faults: list[Fault] = []
        if dry_run:
            faults += holds.enter_context(rehearsing(store))
        else:
            holds.enter_context(store.writer())
        swept = store.sweep()  # first, and told: retention sweeps, too
        faults += store.faults
        removed = [] if keep is None else store.retain(keep)
        faults += [fault for fault in store.faults if fault not in faults]
    return Cleaned(removed, swept, faults)
