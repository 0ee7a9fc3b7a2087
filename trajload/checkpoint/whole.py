"""The whole training state over all ranks: who saves what, and where each rank finds it again.

rank 0      replicated components, its own state, its pieces of sharded tensors
rank r > 0                         its own state, its pieces of sharded tensors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trajload.checkpoint import facts, sharded
from trajload.checkpoint.exposure import check_order
from trajload.errors import CheckpointMismatchError, ConfigError

if TYPE_CHECKING:
    from trajload.checkpoint.capture import PlannedFile, Snapshot
    from trajload.checkpoint.entries import Commit
    from trajload.checkpoint.sharded import Sharded, Shards
    from trajload.checkpoint.staging import Staging

__all__ = ["Taken", "Whole"]

RNG = "rng"
"""Name of the component that holds the random streams."""
_DCP_BYTES = 4096
"""More than a piece takes on the disk beside its own bytes: torch writes each as a small archive."""


@dataclass(slots=True)
class Taken:
    """What one rank saves: a snapshot of its components, and its pieces of sharded tensors."""

    snapshot: Snapshot
    shards: Shards | None

    @property
    def files(self) -> Sequence[PlannedFile]:
        return self.snapshot.files()

    @property
    def bytes(self) -> int:
        return self.snapshot.bytes + (0 if self.shards is None else self.shards.bytes + _DCP_BYTES * self.shards.count)

    @property
    def adopt(self) -> Callable[[Any], None] | None:
        """Writes the pieces into a part; None where there are none."""
        return None if self.shards is None else self.shards.write

    def release(self) -> None:
        """Give the memory of the copies back for the next snapshot."""
        self.snapshot.release()
        self.shards = None


class Whole:
    """The components that a Checkpointer was given, and how they are divided among ranks."""

    def __init__(self, state: Mapping[str, Any], *, rng: Any, rank_state: Mapping[str, Any] | None) -> None:
        from trajload.checkpoint.components import check_names

        if not isinstance(state, Mapping) or (not state and rng is None and not rank_state):
            raise ConfigError(
                f"state={type(state).__name__} holds nothing to save: expected name → model, optimiser, ..."
            )
        self.state = dict(state)
        self.own = dict(rank_state or {})
        both = sorted(self.state.keys() & self.own.keys())
        if both or RNG in self.state or RNG in self.own:
            raise ConfigError(
                f"component names {both or [RNG]} are taken: state and rank_state must have different names, and {RNG!r} is "
                "that of the random streams, which are given as rng=."
            )
        self._has_rng = rng is not None
        if rng is not None:
            self.own[RNG] = rng
        check_names({**self.state, **self.own})

    @property
    def names(self) -> list[str]:
        """Of the components, in the order in which they were given."""
        return [*self.state, *self.own]

    def about(self) -> dict[str, Any]:
        """Return what the commit record says of the components."""
        return {"state": sorted(self.state), "rank_state": sorted(self.own.keys() - {RNG}), "rng": self._has_rng}

    # ---- saving ----

    def take(self, rank: int, *, copy: bool, staging: Staging | None) -> Taken:
        """Return what `rank` saves at this moment; with `copy`, nothing that happens later changes it."""
        from trajload.checkpoint.capture import Component, snapshot

        plain, spread = sharded.split(self.state)
        # Marks are plain values: whoever holds the rest of such a component is rank 0, like that of all others.
        marked = {name: Component(_give(one.tree), _refuse) for name, one in spread.items()}
        mine = {**plain, **marked, **self.own} if rank == 0 else self.own
        shards = sharded.Shards(spread, copy=copy) if spread else None
        return Taken(snapshot(mine, copy=copy, staging=staging), shards)

    # ---- restoring ----

    def restore(
        self, store: Any, commit: Commit, rank: int, world: int, *, strict: bool, allow_data_change: bool
    ) -> list[str]:
        """Load a verified commit into the components; all of it fits, or nothing is changed.

        Returns:
            What is worth knowing: streams of ranks that are not in the checkpoint, components left out.

        Raises:
            CheckpointMismatchError: It does not fit; every difference is named.
        """
        from trajload.checkpoint.restoring import restore

        notes = self._compare(commit, strict)
        check_order(commit.info, self.state, facts.loaders_of(self.state))
        if self.own.keys() - {RNG} and commit.world != world:
            raise CheckpointMismatchError(
                f"the checkpoint holds state of each of {commit.world} ranks ({', '.join(sorted(self.own.keys() - {RNG}))}): "
                f"got {world} ranks. Go on with {commit.world}, or leave rank_state out and pass strict=False."
            )
        first = store.part(commit, 0)
        parts = {0: first}
        saved = commit.info.get("components", {})
        targets: dict[str, Any] = {
            name: self.state[name] for name in self.state if name in saved.get("state", self.state)
        }
        readers: dict[str, Any] = dict.fromkeys(targets, first)
        if rank < commit.world:
            mine = parts.setdefault(rank, first if rank == 0 else store.part(commit, rank))
            there = {*saved.get("rank_state", ()), *([RNG] if saved.get("rng", True) else [])}
            for name in self.own:
                if name in there:
                    targets[name], readers[name] = self.own[name], mine
        elif self._has_rng:
            notes.append(
                f"rank {rank} has no random streams in a checkpoint of {commit.world} ranks: they stay as they are"
            )
        if commit.world != world:
            notes.append(f"ranks: saved with {commit.world}, here {world}")
        targets.update(self._sharded_targets(store, commit, parts, targets))
        # Files of rank 0 were verified there; other ranks read them for the first time.
        verify = rank != 0
        return notes + restore(targets, readers, strict=strict, allow_data_change=allow_data_change, verify=verify)

    def _sharded_targets(
        self, store: Any, commit: Commit, parts: dict[int, Any], targets: Mapping[str, Any]
    ) -> dict[str, Any]:
        from trajload.checkpoint.capture import Component

        spread = sharded.split({name: targets[name] for name in targets if name in self.state})[1]
        is_sharded = sharded.INDEX_FILE in parts[0].files
        if not is_sharded and not spread:
            return {}
        all_parts = {r: parts.get(r) or store.part(commit, r) for r in range(commit.world)}
        index = sharded.read_index(all_parts if is_sharded else {})
        whole = sorted(spread.keys() - {path.split("/")[0] for path in index})
        if whole:
            raise CheckpointMismatchError(
                f"components {whole} are sharded here and were saved whole: resume before they are sharded, save, and go on from there."
            )
        for name in {path.split("/")[0] for path in index} & targets.keys() - spread.keys():
            spread[name] = sharded.unsharded(name, targets[name])
        return {
            name: Component(_give(one.tree), _loader(one, index), _checker(one, index)) for name, one in spread.items()
        }

    def _compare(self, commit: Commit, strict: bool) -> list[str]:
        """Compare the names of components; return those that are left out."""
        saved = commit.info.get("components")
        if not isinstance(saved, Mapping):
            return []
        there = {*saved.get("state", ()), *saved.get("rank_state", ()), *([RNG] if saved.get("rng") else [])}
        here = {*self.state, *self.own}
        lines = [f"{name}: in the checkpoint, not among the components here" for name in sorted(there - here)]
        lines += [f"{name}: among the components here, not in the checkpoint" for name in sorted(here - there)]
        if lines and strict:
            raise CheckpointMismatchError(
                f"commit {commit.seq} (step {commit.step}) holds other components. Differing:\n  - "
                + "\n  - ".join(lines)
                + "\nBuild the Checkpointer with the components that were saved, or pass strict=False to leave these out."
            )
        return lines


def _give(tree: Any) -> Any:
    return lambda: tree


def _refuse(tree: Any) -> None:
    raise AssertionError("a component made for saving is not loaded into")


def _checker(one: Sharded, index: Mapping[str, Mapping[str, Any]]) -> Any:
    def check(tree: Any) -> None:
        targets = sharded.targets_of(tree, one, index)
        if getattr(one.component, "check", None) is not None:
            one.component.check(sharded.filled(tree, one.name, targets))

    return check


def _loader(one: Sharded, index: Mapping[str, Mapping[str, Any]]) -> Any:
    from trajload.checkpoint.components import kind_of
    from trajload.checkpoint.in_place import assign

    def load(tree: Any) -> None:
        targets = sharded.targets_of(tree, one, index)
        sharded.load_pieces(targets, index)
        whole = sharded.filled(tree, one.name, targets)
        kind = kind_of(one.name, one.component)
        if kind == "callable":
            one.component.set(whole)
        elif kind == "tree":
            assign(one.component, whole)
        else:
            one.component.load_state_dict(whole)

    return load
