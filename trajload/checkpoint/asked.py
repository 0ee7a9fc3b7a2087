"""What can be asked of a Checkpointer, and done with its commits, beside saving and going on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajload.arguments import explains_calls_as
from trajload.checkpoint.entries import Keep
from trajload.checkpoint.every import Clock
from trajload.checkpoint.group import Group
from trajload.checkpoint.hold import Hold
from trajload.checkpoint.opening import open as open_store
from trajload.checkpoint.outcomes import Outcomes
from trajload.checkpoint.saving import Saved
from trajload.checkpoint.whole import Whole
from trajload.types import PathLikeStr

if TYPE_CHECKING:
    from trajload.checkpoint.entries import Commit

__all__ = ["CheckpointerFacts"]


@explains_calls_as("Checkpointer")
class CheckpointerFacts:
    """Base of `Checkpointer`. Everything is read from its parts; nothing is kept here."""

    _group: Group
    _outcomes: Outcomes
    _hold: Hold
    _whole: Whole
    _clock: Clock
    _keep: Keep

    def _open(self) -> Any:
        raise NotImplementedError

    @property
    def last(self) -> Saved | None:
        """The newest save of this run that was committed, as far as is known without waiting."""
        return self._outcomes.last

    def pin(self, name: str, at: int | str | None = None) -> None:
        """Give a commit a name, so that retention leaves it: the newest one, or that of a step or digest. On rank 0."""
        if self._group.rank == 0:
            store = self._open()
            store.pin(name, store.pick(at))

    def promote(self, to: PathLikeStr | Any, at: int | str | None = None) -> Commit | None:
        """Copy a commit to another store (another disk, an object store), verified; return it as it is there. On rank 0."""
        if self._group.rank != 0:
            return None
        store = self._open()
        copied: Commit = store.promote(store.pick(at), open_store(to, create=True, take_over=False))
        return copied

    def stats(self) -> dict[str, Any]:
        """Return what saving has cost: counts, seconds that training was blocked, bytes written and not written again."""
        return self._outcomes.stats.to_json()

    def __repr__(self) -> str:
        return f"<Checkpointer {self._hold.name!r}: {', '.join(self._whole.names)}; {self._clock.every}, {self._keep}>"
