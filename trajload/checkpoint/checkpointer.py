"""The Checkpointer: saves whole training state on time, and goes on from the newest good checkpoint."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trajload.arguments import explains_calls
from trajload.checkpoint import facts
from trajload.checkpoint.agree import agree
from trajload.checkpoint.asked import CheckpointerFacts
from trajload.checkpoint.entries import Keep, check_keep
from trajload.checkpoint.every import Clock, Every
from trajload.checkpoint.exposure import Exposure, check_tags
from trajload.checkpoint.group import find_group
from trajload.checkpoint.hold import Hold
from trajload.checkpoint.memory import Copies
from trajload.checkpoint.outcomes import Outcomes
from trajload.checkpoint.part_files import kept_of
from trajload.checkpoint.report import Report
from trajload.checkpoint.resuming import Finder, nothing_found
from trajload.checkpoint.saving import Plan, Saved, Saver
from trajload.checkpoint.settings import Mode, OnBad, ResumeMode, Settings, WhenBusy
from trajload.checkpoint.whole import Taken, Whole
from trajload.errors import CheckpointError, ConfigError
from trajload.types import PathLikeStr

if TYPE_CHECKING:
    from trajload.checkpoint.store import Store

__all__ = ["Checkpointer"]

_log = logging.getLogger("trajload")


@explains_calls
class Checkpointer(CheckpointerFacts):
    """Saves a training state as one commit, and restores it.

    With torch.distributed initialised every rank builds a Checkpointer and calls it alike. Components of `state` are the
    same on every rank and are written once, by rank 0; sharded tensors among them (FSDP2's) are written by the ranks that
    hold them; `rng` and `rank_state` are each rank's own.

    Args:
        store: Folder, URL or `Store`. Rank 0 holds its writer lock from the first `resume` or save to `close`.
        state: Name → module, optimiser, scheduler, scaler, loader, anything with `state_dict` and `load_state_dict`; trees
            of tensors and plain values; or `checkpoint.Component(get, set)`. All of them are one commit.
        rng: `tl.Streams(...)`: the random generators that training draws from; None saves none.
        rank_state: Like `state`, but of each rank's own. Going on with another number of ranks is then refused.
        every: When `step` saves. Without it only `save` does.
        keep: Which commits stay; by default the newest three. Nothing is removed before its successor has been verified.
        mode: 'sync' returns from a save once it is on the disk; 'async' once the state is copied, and writes in a thread;
            'auto' is 'async' while the copy fits into free memory, and says so where it is not.
        resume: What `resume` does: 'auto' goes on if there is a good checkpoint, 'on' insists, 'off' starts anew.
        on_bad: A damaged newest checkpoint: 'fallback' goes on from the newest good one, and reports; 'error' raises.
        when_busy: A save is due while one is being written: 'wait' for it, or 'skip' the new one (logged, and counted).
        allowed_tags: Consent tags of datasets; a commit that has seen data with another tag is not loaded. None: not asked.
        after_resume: Called with the report, on every rank that has one, once a commit has been loaded: to give the weights to
            inference engines, or whoever else holds copies of them. What it raises comes out of `resume`, on all ranks.
        retries: Further tries, each in a folder of its own, of a save that failed for a reason that may pass.
        max_aborted: So many saves in a row that did not commit raise in `step`; fewer are logged.
        group: torch process group of the ranks that save together; None: all.
        timeout_s: How long ranks wait for each other. Longer than the slowest rank writes.
        run_id: Stands in each commit; a new one by default.

    Raises:
        ConfigError: A bad argument.

    Example:
        >>> ckpt = Checkpointer("checkpoints", {"model": model, "loader": loader}, every=Every(steps=1000))  # doctest: +SKIP
        >>> report = ckpt.resume()                                                                          # doctest: +SKIP
        >>> for batch in loader:                                                                            # doctest: +SKIP
        ...     train(batch)
        ...     ckpt.step(loader.train_step)
    """

    def __init__(
        self,
        store: PathLikeStr | Any,
        state: Mapping[str, Any],
        *,
        rng: Any = None,
        rank_state: Mapping[str, Any] | None = None,
        every: Every | None = None,
        keep: Keep | None = None,
        mode: Mode = "auto",
        resume: ResumeMode = "auto",
        on_bad: OnBad = "fallback",
        when_busy: WhenBusy = "wait",
        allowed_tags: Collection[str] | None = None,
        after_resume: Callable[[Report], Any] | None = None,
        retries: int = 3,
        max_aborted: int = 2,
        group: Any = None,
        timeout_s: float = 600.0,
        run_id: str | None = None,
    ) -> None:
        self.settings = Settings(
            mode=mode,
            resume=resume,
            on_bad=on_bad,
            when_busy=when_busy,
            retries=retries,
            max_aborted=max_aborted,
            timeout_s=timeout_s,
            allowed_tags=allowed_tags,
            after_resume=after_resume,
        )
        self._whole = Whole(state, rng=rng, rank_state=rank_state)
        self._clock = Clock(every)
        self._keep = check_keep(keep)
        self._group = find_group(group)
        self._hold = Hold(store, self._group, timeout_s)
        self._saver: Saver | None = None
        self._copies = Copies(mode)
        self._outcomes = Outcomes(max_aborted)
        self._exposure = Exposure()
        self._stats = self._outcomes.stats
        self._structure: dict[str, str] | None = None
        self._topics, self._is_closed, self._knows_store = 0, False, False
        self._pid = os.getpid()
        self.run_id = run_id or uuid.uuid4().hex
        self.resumed_from: str | None = None
        """Digest of the commit that this run went on from."""
        if self._group.world == 1:
            self._hold.look(create=True)  # what is wrong with the folder is better known at once

    # ---- the store ----

    @property
    def store(self) -> Store:
        """Commits, pins and promotions; opened for writing."""
        return self._open()

    def _open(self) -> Store:
        self._check_open()
        if self._saver is None:
            store = self._hold.open(self._topic("open"))
            settings = self.settings
            self._saver = Saver(
                store, self._group, timeout_s=settings.timeout_s, retries=settings.retries, reached=self._reached
            )
        return self._hold.look(create=False)

    def _reached(self, step: str) -> None:
        """Called at each step of a save, in its thread; tests end the process here."""

    def _topic(self, name: str) -> str:
        """Return a name for the next thing that ranks talk about; the same on all ranks, since they call alike."""
        self._topics += 1
        return f"{name}/{self._topics}"

    def _check_open(self) -> None:
        if self._is_closed:
            raise CheckpointError("the Checkpointer is closed: build a new one.")
        if self._pid != os.getpid():
            raise CheckpointError(
                f"this Checkpointer belongs to process {self._pid}, of which this one ({os.getpid()}) is a fork: save there."
            )

    def _know_store(self) -> None:
        """Before the first save: refuse to save among checkpoints that this run has not looked at; all ranks alike."""
        self._check_open()
        if not self._knows_store:
            self._open()
            self._hold.check_is_known(self._topic("known"), is_meant=self.settings.resume == "off")
            self._knows_store = True

    def close(self) -> None:
        """Wait for the save that is being written, and let go of the store. Idempotent.

        Interrupted while it waits (Ctrl-C), it holds the store, and can be called again.

        Raises:
            CheckpointError: The newest save did not commit.
        """
        if self._is_closed or self._pid != os.getpid():
            return
        try:
            self._hold.settle()
            self._outcomes.finish()
        finally:
            if not self._outcomes.busy:  # else another writer would be let in beside it
                self._is_closed = True
                self._hold.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CheckpointError as err:
            if error is None:
                raise
            _log.error("the last save did not commit: %s", err)  # what ended the run is more to the point

    # ---- going on ----

    def resume(self, at: int | str | None = None, *, allow_data_change: bool = False, strict: bool = True) -> Report:
        """Load the newest good checkpoint into the components, or say that there is none.

        Args:
            at: A step (the closest checkpoint is taken, of two equally close the higher) or a commit's digest or its
                beginning; None for the newest one. What is asked for by `at` is never replaced by another.
            allow_data_change: Go on with another dataset than that of the checkpoint.
            strict: False leaves out components that are only here or only in the checkpoint; the report names them.

        Raises:
            CheckpointMismatchError: The checkpoint is of another model, dataset or number of ranks; nothing was changed.
            CheckpointCorruptError: It is damaged, and no other may be taken (`on_bad='error'`, or `at`).
            CheckpointError: There is none, and `resume='on'`.
            WriterConflictError: Another process writes this store.
            Exception: Whatever `after_resume` raised, CheckpointError on other ranks; the components hold the checkpoint then.
        """
        self._check_open()
        if self.settings.resume == "off":
            if at is not None:
                raise ConfigError(f"resume(at={at!r}) contradicts resume='off': leave one of them out.")
            return Report.anew("resume='off'", ())
        self._outcomes.take()
        store = self._open()
        finder = Finder(store, self._group, timeout_s=self.settings.timeout_s, topic=self._topic("resume"))
        choice = finder.find(at, on_bad=self.settings.on_bad)
        commit = choice.commit
        if commit is None:
            report = nothing_found(store.name, choice.faults, insists=self.settings.resume == "on")
            self._knows_store = True
            return report
        rank, world = self._group.rank, self._group.world

        def load() -> tuple[Any, list[str]]:
            part, changed = store.part(commit, rank) if rank < commit.world else None, allow_data_change
            return part, self._whole.restore(store, commit, rank, world, strict=strict, allow_data_change=changed)

        # By itself: a rank that refuses must do so before any other has changed a thing.
        finder.together(lambda: check_tags(commit, self.settings.allowed_tags), "the look at consent tags")
        part, notes = finder.together(load, "loading the checkpoint")
        assert self._saver is not None
        self._saver.kept = {} if part is None else kept_of(part.files, part.extra)
        self._clock.start(commit.step, commit.info.get("epoch"))
        self.resumed_from = commit.digest
        self._exposure.go_on(commit.info, self._whole.state, facts.loaders_of(self._whole.state))
        self._knows_store = True
        diffs = (*notes, *facts.differing_versions(commit.info.get("versions")))
        report = Report.of(commit, at, choice.faults, diffs)
        hook = self.settings.after_resume or (lambda report: None)  # some ranks may have none, and wait for the others
        finder.together(lambda: hook(report), "after_resume", kind=CheckpointError)
        return report

    # ---- saving ----

    def step(self, train_step: int, epoch: int | None = None, metrics: Mapping[str, float] | None = None) -> bool:
        """Save if a save is due; call it after every update. Returns whether a save was begun.

        Args:
            train_step: Updates done, such as `loader.train_step`; it only goes up.
            epoch: For `Every(epochs=)`; by default that of the loader in `state`.
            metrics: Numbers to keep with the commit, for `Keep(best=)`.

        Raises:
            CheckpointAbortedError: `max_aborted` saves in a row did not commit.
            CheckpointMismatchError: Ranks are at different points.
            WriterConflictError: Another process writes this store.
            ConfigError: It holds checkpoints, and `resume` was not called.
        """
        self._know_store()
        epoch = facts.checked_epoch(self._whole.state, epoch, metrics)
        self._outcomes.look()
        step = self._clock.is_new(train_step)
        if step is None:
            return False  # it was looked at already
        if epoch is None and self._clock.every.epochs is not None:
            raise ConfigError(
                "Every(epochs=...) needs the epoch: no loader is among the components, so pass step(..., epoch=)."
            )
        why = self._clock.due(step, epoch)
        if self._clock.needs_time:  # ranks' clocks differ: rank 0 decides
            why = self._group.tell(self._topic("due"), why, self.settings.timeout_s)
        if why is None or not self._is_free(step):
            return False
        try:
            self._save(step, epoch, metrics)
        except CheckpointError as err:
            self._outcomes.aborted(err)
        return True

    def save(self, train_step: int, epoch: int | None = None, metrics: Mapping[str, float] | None = None) -> None:
        """Save now, whatever is due. In mode 'sync' it is on the disk on return, else after `wait`.

        Raises:
            CheckpointError: It did not commit.
            ConfigError: The store holds checkpoints, and `resume` was not called.
        """
        self._know_store()
        epoch = facts.checked_epoch(self._whole.state, epoch, metrics)
        step = self._clock.is_new(train_step)
        self._outcomes.take()
        self._save(index(train_step) if step is None else step, epoch, metrics)

    def _is_free(self, step: int) -> bool:
        """Whether a save may begin: waits for the one before, or says that this one is left out. The same on all ranks."""
        if not self._outcomes.is_due and self._group.world == 1:
            return True
        if self.settings.when_busy == "skip":
            busy = self._group.decide(
                self._topic("busy"), self._outcomes.busy, lambda said, _: any(said.values()), self.settings.timeout_s
            )
            if busy:
                self._stats.skipped += 1
                _log.warning("the save of step %s is left out: the one before it is still being written", step)
                return False
        begin = time.monotonic()
        self._outcomes.settle()
        self._stats.waited_s += time.monotonic() - begin
        return True

    def _save(self, step: int, epoch: int | None, metrics: Mapping[str, float] | None) -> None:
        begin = time.monotonic()
        self._hold.settle()
        rank, whole = self._group.rank, self._whole
        loaders, exposure = dict[str, Any](), dict[str, Any]()
        held: list[Taken] = []
        in_background = False

        def look() -> tuple[dict[str, Any], int]:
            nonlocal in_background
            loaders.update(facts.loaders_of(whole.state))
            exposure.update(self._exposure.now(whole.state, loaders))
            in_background = self._copies.are_made(
                lambda: self._stats.state_bytes or whole.take(rank, copy=False, staging=None).bytes
            )
            held.append(whole.take(rank, copy=in_background, staging=self._copies.staging))
            return self._facts(step, loaders), held[0].bytes

        try:
            agreed = agree(self._group, self._topic("begin"), step, look, self.settings.timeout_s)
            [taken] = held
            info = facts.of_save(
                whole.about(),
                loaders,
                metrics,
                exposure=exposure,
                run_id=self.run_id,
                epoch=epoch,
                resumed_from=self.resumed_from,
                mode="async" if in_background else "sync",
                snapshot_s=round(time.monotonic() - begin, 6),
            )
            plan = Plan(
                step=step, nonce=agreed.nonce, files=taken.files, adopt=taken.adopt, need_bytes=agreed.bytes, info=info
            )
        except BaseException:
            for taken in held:
                taken.release()
            raise
        self._stats.state_bytes = taken.bytes
        self._clock.saved(step)
        try:
            self._outcomes.begin(lambda: self._write(plan, taken, in_background), in_background=in_background)
        finally:
            self._stats.blocked_last_s = time.monotonic() - begin
            self._stats.blocked_s += self._stats.blocked_last_s

    def _write(self, plan: Plan, taken: Taken, in_background: bool) -> Saved:
        """Carry out a save, in whatever thread, and let old commits go; in mode 'sync' while training goes on."""
        try:
            assert self._saver is not None
            saved = self._saver.save(plan)
        finally:
            taken.release()
        self._hold.retain(self._keep, in_background=not in_background)
        return saved

    def _facts(self, step: int, loaders: Mapping[str, Any]) -> dict[str, Any]:
        """Return what must be the same on all ranks; of the structure, which does not change, only once."""
        told = facts.agreement(step, self._whole.state, loaders)
        if self._structure is None and self._group.world > 1:
            told["structure"] = self._structure = facts.structure_of(self._whole.state)
        return told

    # ---- outcomes ----

    def wait(self) -> Saved | None:
        """Wait for the save that is being written, and for retention; return the newest save of this run that was committed.

        Raises:
            CheckpointError: It did not commit.
        """
        self._hold.settle()
        self._outcomes.take()
        return self.last
