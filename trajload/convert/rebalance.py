"""`rebalance`: the episodes of a native dataset dealt to shards anew, so that every shard costs the same.

Members keep their bytes; only which shard an episode stands in changes, and with it the order of episodes.
"""

# Shapes: E episodes, S shards

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from trajload.arguments import explains_calls
from trajload.convert.rewrite import RewritePlan, Rewriting, check_target, check_unused, rewritten_from
from trajload.costs.balance import Spread, assign_episodes, check_num_shards, shard_sums
from trajload.costs.epoch import check_table, epoch_ns
from trajload.costs.machine import machine_facts
from trajload.costs.profile import DEFAULT_NUM_STEPS, profile
from trajload.costs.table import CostTable
from trajload.errors import ConfigError, at
from trajload.manifest import Manifest
from trajload.shards.records import EpisodeRecord
from trajload.shards.stored import stored_record
from trajload.sources.base import Dataset
from trajload.sources.native import NativeDataset, open_native
from trajload.sources.open import open as open_dataset
from trajload.spec import Window
from trajload.types import Int64Array, PathLikeStr

__all__ = ["By", "RebalanceReport", "rebalance"]

By = Literal["cost", "bytes", "steps"]
COSTS_NAME = "costs.json"
_PROVENANCE = "rebalanced"


@dataclass(slots=True)
class RebalanceReport:
    """What a rebalancing did, or with dry_run would do."""

    source: str
    from_digest: str
    out: str
    by: str
    dry_run: bool
    num_shards: int
    num_episodes: int
    digest: str = ""
    """Of the new dataset; empty for a dry run."""
    num_bytes: int = 0
    """Of the new shards."""
    num_shards_kept: int = 0
    """Shards that an earlier run, killed since, had finished."""
    was_there: bool = False
    """An earlier run had finished: nothing was written."""
    predicted: dict[str, Any] = field(default_factory=dict)
    """`before` and `after`: spread of the shards in what they were balanced by."""
    measured: dict[str, Any] | None = None
    """`before` and `after`: spread of the shards' decode cost, measured anew on the new dataset; None where it was not."""
    shards: list[dict[str, Any]] = field(default_factory=list)
    """Of each new shard: episodes and predicted amount (ns, bytes or steps)."""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@explains_calls
def rebalance(
    dataset: Dataset | PathLikeStr,
    out: PathLikeStr,
    *,
    num_shards: int,
    by: By = "cost",
    costs: CostTable | PathLikeStr | None = None,
    window: Window | None = None,
    dry_run: bool = False,
    measure: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> RebalanceReport:
    """Write `dataset` into the new folder `out` with shards of even cost, and return how even they were and are.

    A run that was killed goes on with the same call: finished shards are checked and kept. Nothing is a dataset in `out`
    before all shards stand. With `by="cost"` and with `measure` the new dataset gets a `costs.json`.

    Args:
        dataset: A native dataset, or its path.
        out: Folder to write; neither the dataset's own nor inside it.
        num_shards: How many shards to deal the episodes to.
        by: What is made even: measured decode cost, bytes, or steps.
        costs: Table or its path, for by="cost". None takes the dataset's `costs.json`, and measures where there is none.
        window: Windows whose decoding counts; 16 steps by default.
        dry_run: Say what would come of it, and write nothing.
        measure: Measure decode costs of the new dataset when it is written, and say how even old and new shards are by that.
        progress: Called with (what is done, done, in all).

    Raises:
        ConfigError: Bad arguments, a dataset that is not native, or a folder that holds something else.
        ShardCorruptError: A member of the dataset does not have its checksum; nothing is published.
        ShardError: The disk refused.

    Example:
        >>> report = rebalance("my-dataset", "my-dataset-even", num_shards=16)      # doctest: +SKIP
    """
    started = time.monotonic()
    if by not in get_args(By):
        raise ConfigError(f"by={by!r} is unknown: expected one of {', '.join(map(repr, get_args(By)))}.")
    target = Path(out)
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    source = check_target(opened, target)
    check_num_shards(num_shards, source.num_episodes)  # before costs are measured
    window = Window(num_steps=DEFAULT_NUM_STEPS) if window is None else window
    settings = {"num_shards": num_shards, "by": by, "window": window.to_json()}
    report = RebalanceReport(
        source=source.path,
        from_digest=source.digest,
        out=str(out),
        by=by,
        dry_run=dry_run,
        num_shards=num_shards,
        num_episodes=source.num_episodes,
    )
    job = _Job(source, target, settings, window, costs, report, progress)
    job.check_costs()
    if dry_run:
        job.tell(job.new_plan())
        job.look_at_out()
    else:
        job.run()
        if measure:
            job.measure()
    report.seconds = round(time.monotonic() - started, 3)
    return report


class _Job:
    def __init__(
        self,
        source: NativeDataset,
        out: Path,
        settings: dict[str, Any],
        window: Window,
        costs: CostTable | PathLikeStr | None,
        report: RebalanceReport,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        self.source, self.out, self.settings, self.window = source, out, settings, window
        self._costs, self.report = costs, report
        self._progress = progress
        entries = source.manifest.shards
        self._first_S1 = np.cumsum([0, *(entry.num_episodes for entry in entries)])

    def progress(self, what: str) -> Callable[[int, int], None] | None:
        return None if self._progress is None else partial(self._progress, what)

    # ---- planning ----

    def table(self) -> CostTable:
        """Return the table to balance by: as given, that of the dataset, or one measured now."""
        costs = self._costs
        own = Path(self.source.path, COSTS_NAME)
        if costs is None and own.is_file():
            found = CostTable.load(own)
            if found.dataset_digest == self.source.digest:
                self.report.notes.append(f"costs are those of {str(own)!r}.")
                return self._fitting(found)
            self.report.notes.append(f"{str(own)!r} is of an earlier version of the dataset: costs were measured anew.")
        if costs is None:
            return profile(self.source, window=self.window, progress=self.progress("measuring costs")).table
        return self._fitting(costs if isinstance(costs, CostTable) else CostTable.load(costs))

    def _fitting(self, table: CostTable) -> CostTable:
        """Return a table of this dataset; of another kind of machine that is said."""
        there = table.info.get("machine")
        name, here = there.get("processor") if isinstance(there, Mapping) else None, machine_facts()["processor"]
        if name is not None and name != here:
            self.report.notes.append(
                f"costs were measured on {name!r}, this is {here!r}: measure where you train if codecs or sizes differ."
            )
        return check_table(table, self.source)

    def check_costs(self) -> None:
        """Refuse a table that was given and does not fit, also where an earlier run has finished already."""
        if self.report.by == "cost" and self._costs is not None:
            costs = self._costs if isinstance(self._costs, CostTable) else CostTable.load(self._costs)
            self._costs = check_table(costs, self.source)

    def look_at_out(self) -> None:
        """Tell a dry run what stands where the real one would write."""
        try:
            check_unused(self.out)
        except ConfigError as err:
            self.report.notes.append(err.message)
        found = rewritten_from(self.out, _PROVENANCE) if self.out.is_dir() else None
        if found is not None:
            same = self._is_mine(found[1])
            self.report.notes.append(
                f"{str(self.out)!r} already holds "
                + (
                    "this dataset, rebalanced so."
                    if same
                    else "a dataset, which is not this one rebalanced so: choose another folder."
                )
            )

    def _is_mine(self, said: Mapping[str, Any]) -> bool:
        wanted = {"from_digest": self.source.digest, **self.settings}
        return all(said.get(name) == value for name, value in wanted.items())

    def amounts(self) -> tuple[Int64Array, CostTable | None]:
        """Return what each episode weighs, (E,), and the table that says so."""
        if self.report.by == "steps":
            return self.source.num_steps_E, None
        if self.report.by == "bytes":
            return self.source.stored_bytes(), None
        table = self.table()
        return np.sum(list(epoch_ns(self.source, table, self.window).values()), axis=0), table

    def new_plan(self) -> RewritePlan:
        """Return which episodes go where."""
        amount_E, table = self.amounts()
        shards = assign_episodes(amount_E, self.report.num_shards)
        details: dict[str, Any] = {
            "unit": {"cost": "ns of CPU time in an epoch of random windows", "bytes": "bytes", "steps": "steps"}[
                self.report.by
            ],
            "before": Spread.of(shard_sums(amount_E, self.old_shards())).to_json(),
            "after": Spread.of(shard_sums(amount_E, shards)).to_json(),
            "amounts": [int(amount) for amount in shard_sums(amount_E, shards)],
            "notes": self._remarks(amount_E),
            "costs_digest": None if table is None else table.digest,
        }
        return RewritePlan(self.source.digest, self.settings, [group.tolist() for group in shards], details)

    def _remarks(self, amount_E: Int64Array) -> list[str]:
        share = float(amount_E.sum()) / self.report.num_shards
        dearest = int(amount_E.argmax())
        if amount_E[dearest] <= share:
            return []
        return [
            f"episode {self.source.episode_key(dearest)!r} alone is {amount_E[dearest] / share:.2f} times a shard's share: shards "
            "hold whole episodes, so no dealing makes them even. Take fewer shards."
        ]

    def old_shards(self) -> list[Int64Array]:
        """Return the episodes of each shard of the source."""
        return _runs(self._first_S1)

    def tell(self, plan: RewritePlan) -> None:
        """Put what a plan promises into the report."""
        details = plan.details
        self.report.predicted = {key: details[key] for key in ("unit", "before", "after", "costs_digest")}
        self.report.shards = [
            {"num_episodes": len(group), "amount": amount}
            for group, amount in zip(plan.shards, details["amounts"], strict=True)
        ]
        self.report.notes += details["notes"]

    # ---- writing ----

    def run(self) -> None:
        """Write what is not there yet."""
        with Rewriting(self.out, list(self.source.streams)) as work:
            found = rewritten_from(self.out, _PROVENANCE)
            if found is not None:
                self._already(work, *found)
                return
            plan = work.go_on(self.source.digest, self.settings)
            if plan is None:
                plan = self.new_plan()
                plan.save(self.out)
            self.report.num_shards_kept = len(plan.done)
            self.tell(plan)
            entries = work.write(plan, self.record, self.progress("writing episodes"))
            old = self.source.manifest
            folder = Path(self.source.path)
            said = {
                "from_digest": self.source.digest,
                **self.settings,
                **plan.details,
                "tool": f"trajload.rebalance {_version()}",
            }
            manifest = replace(
                old,
                shards=tuple(entries),
                stats=work.copy_beside(folder, old.stats),
                sketch=work.copy_beside(folder, old.sketch),
                provenance={**old.provenance, _PROVENANCE: [*old.provenance.get(_PROVENANCE, []), said]},
                stored_digest=None,
            )
            work.publish(manifest)
            self._finished(manifest)

    def _already(self, work: Rewriting, manifest: Manifest, said: Mapping[str, Any]) -> None:
        """Take up a dataset that an earlier run finished, or refuse the folder."""
        if not self._is_mine(said):
            raise ConfigError(
                f"out={str(self.out)!r} already holds a dataset, which is not this one rebalanced so. Choose another folder."
            )
        work.drop_plan()
        self.report.predicted = {key: said[key] for key in ("unit", "before", "after", "costs_digest")}
        self.report.num_shards_kept = len(manifest.shards)
        self.report.was_there = True
        self.report.notes.append("the folder was finished by an earlier run: nothing was written.")
        self.report.shards = [
            {"num_episodes": entry.num_episodes, "amount": amount}
            for entry, amount in zip(manifest.shards, said["amounts"], strict=True)
        ]
        self._finished(manifest)

    def _finished(self, manifest: Manifest) -> None:
        self.report.digest = manifest.digest
        self.report.num_bytes = sum(entry.num_bytes for entry in manifest.shards)

    def record(self, episode: int) -> EpisodeRecord:
        """Return an episode of the source with its bytes, checked."""
        entry, index, local = self.source.located(episode)
        with at(dataset=self.source.path, shard=entry.name, episode=self.source.episode_key(episode)):
            return stored_record(index, entry.name, self.source.manifest.streams, local, self.source.store.read)

    # ---- measuring ----

    def measure(self) -> None:
        """Measure the new dataset, keep the costs beside it, and tell how even old and new shards are by them."""
        new = open_native(self.out)
        try:
            measured = profile(new, window=self.window, progress=self.progress("measuring the new dataset"))
            measured.table.save(self.out / COSTS_NAME)
            cost_E = np.sum(list(epoch_ns(new, measured.table, self.window).values()), axis=0)
            first_S1 = np.cumsum([0, *(entry.num_episodes for entry in new.manifest.shards)])
            after = _runs(first_S1)
            place = {new.episode_key(e): e for e in range(new.num_episodes)}
            before = [
                np.array([place[self.source.episode_key(e)] for e in group.tolist()]) for group in self.old_shards()
            ]
            self.report.measured = {
                "unit": "ns of CPU time in an epoch of random windows",
                "before": Spread.of(shard_sums(cost_E, before)).to_json(),
                "after": Spread.of(shard_sums(cost_E, after)).to_json(),
                "backend": measured.report.backend,
            }
        finally:
            new.close()


def _runs(first_S1: Int64Array) -> list[Int64Array]:
    """Return the episodes of each shard, given the first episode of each and the end; empty shards left out."""
    return [np.arange(a, b) for a, b in pairwise(first_S1.tolist()) if b > a]


def _version() -> str:
    try:
        return version("trajload")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
