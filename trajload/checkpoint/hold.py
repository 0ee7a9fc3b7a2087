"""A store as the ranks of a training hold it: rank 0 is its writer from the first use to the end."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Any

from trajload.checkpoint.background import Background
from trajload.checkpoint.entries import Keep
from trajload.checkpoint.group import Group
from trajload.checkpoint.opening import open as open_store
from trajload.errors import CheckpointError, ConfigError, TrajloadError, described

__all__ = ["Hold"]

_log = logging.getLogger("trajload")


_HARMLESS = ("fenced", "unsure")
"""Kinds of faults that are no damage: commits of a writer that had lost the store, and what others may be writing."""
_PATIENCE_S = 10.0
"""So long a network disk may take to show other ranks the store that rank 0 has made."""


class Hold:
    """Opens a store when it is first needed, on all ranks together.

    Args:
        where: Folder, URL or store.
        group: The ranks that use it.
        timeout_s: How long the others wait for rank 0 to open it.
    """

    def __init__(self, where: Any, group: Group, timeout_s: float) -> None:
        self._where, self._group, self._timeout_s = where, group, timeout_s
        self._holds = contextlib.ExitStack()
        self._store: Any = None
        self._told: set[str] = set()
        self._tidying: Background[None] = Background("trajload-retention")
        self.is_open = False

    @property
    def name(self) -> str:
        """Of the store, for messages."""
        return str(self._where.name if hasattr(self._where, "newest") else os.fspath(self._where))

    def look(self, *, create: bool) -> Any:
        """Return the store without taking it for writing."""
        if self._store is None:
            self._store = open_store(self._where, create=create)
        return self._store

    def open(self, topic: str) -> Any:
        """Return the store, of which rank 0 is now the writer. The first time it is made if need be, and swept.

        Raises:
            WriterConflictError: Another process is; on rank 0. The others raise CheckpointError.
        """
        if self.is_open:
            return self._store
        failed: Exception | None = None
        if self._group.rank == 0:
            try:
                store = self.look(create=True)
                self._holds.enter_context(store.writer())
                for name in store.sweep():
                    _log.info("left by a save that did not commit, removed: %s", name)
            except (TrajloadError, OSError) as err:
                failed = err
                self._holds.close()
        said = self._group.tell(topic, None if failed is None else str(failed), self._timeout_s)
        if failed is not None:
            raise failed
        if said is not None:
            raise CheckpointError(f"rank 0 cannot open the store: {said}")
        end = time.monotonic() + _PATIENCE_S
        while not self.is_open:
            is_last_look = time.monotonic() > end
            try:
                self.look(create=False)
                self.is_open = True
            except CheckpointError:
                if is_last_look:
                    raise
                time.sleep(0.2)
        return self._store

    def check_is_known(self, topic: str, *, is_meant: bool) -> None:
        """Raise ConfigError where the store holds checkpoints: asked before the first save of a run that has not resumed.

        Retention counts them among its own and would remove them one by one.

        Args:
            topic: Names this question.
            is_meant: The run was told to start anew; then it is only logged.
        """
        held: Any = None
        if self._group.rank == 0:
            commits = self._store.commits()
            held = [len(commits), commits[-1].step] if commits else None
        held = self._group.tell(topic, held, self._timeout_s)
        if held is None:
            return
        what = (
            f"{self._store.name!r} holds {held[0]} checkpoint{'s' if held[0] > 1 else ''}, the newest of step {held[1]}"
        )
        if not is_meant:
            raise ConfigError(
                f"{what}, and resume() was not called: new ones would push them out. Call resume() before the first step, or "
                "pass resume='off' to start anew beside them, or give another folder."
            )
        if self._group.rank == 0:
            _log.warning("training starts anew; %s. `keep` counts them in: pin those that must stay.", what)

    def retain(self, keep: Keep, *, in_background: bool) -> None:
        """Let old commits go; on rank 0. What cannot be removed is logged, and stays until the next time."""
        if self._group.rank == 0:
            if in_background:
                self.settle()
                self._tidying.start(lambda: self._retain(keep))
            else:
                self._retain(keep)

    def _retain(self, keep: Keep) -> None:
        store = self._store
        try:
            # What is verified is read in full, which costs little on this machine, and a download elsewhere.
            store.retain(keep) if hasattr(store, "root") else store.retain(keep, verify="sizes")
        except (TrajloadError, OSError) as err:
            _log.warning("old checkpoints could not be removed: %s", described(err))
            return
        faults = list(store.faults)
        self._look_for_best(keep, store)
        for fault in faults:
            if fault.kind not in _HARMLESS and str(fault) not in self._told:
                self._told.add(str(fault))
                _log.warning("found while old checkpoints were removed: %s", fault)

    def _look_for_best(self, keep: Keep, store: Any) -> None:
        """Log where no commit has the number that the best one is told by: probably a name that is written otherwise."""
        if keep.metric is None or keep.metric[1] in self._told:
            return
        known = {name for commit in store.commits() for name in commit.info.get("metrics") or ()}
        if keep.metric[1] not in known:
            self._told.add(keep.metric[1])
            what = f"keep=Keep(best={keep.best!r}): no checkpoint has that metric, so none is kept for it; they have {sorted(known)}"
            _log.warning("%s. Pass step(..., metrics={%r: ...}).", what, keep.metric[1])

    def settle(self) -> None:
        """Wait for old commits to be gone."""
        self._tidying.take()

    def close(self) -> None:
        """Let go of the writer lock. Idempotent."""
        self.settle()
        self.is_open = False
        self._holds.close()
