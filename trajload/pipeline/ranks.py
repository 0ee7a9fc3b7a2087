"""Whether all ranks run the same: what each has is laid side by side through torch.distributed's store.

The store is used rather than a collective: it needs no device, does not meet the collectives of the training loop, and
a rank that never comes is waited for no longer than `timeout_s`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trajload.checks import check_bool
from trajload.errors import ConfigError, StageFailedError
from trajload.pipeline.state import differing_fields
from trajload.world import World

__all__ = ["RankCheck", "compare_facts"]

_POLL_S = (0.001, 0.05)
"""First and longest pause between two looks for what is not there yet."""
_TIMEOUT_S = 300.0
"""Of the check that runs by itself: ranks may open a large dataset, or build a model, for minutes."""
_READ_TIMEOUT_S = 10.0
"""How long rank 0, whose process may hold the store, waits for the others to have read it."""
_PREFIX = "trajload/check_ranks"


class RankCheck:
    """The check of one loader: on request, or by itself before its first batch.

    Args:
        world: Which rank the loader is of.
        is_own_choice: Whether the caller named the rank; the environment or a mesh did otherwise.
        mesh: The device mesh that did, whose processes are then compared.
        is_on: False switches off what runs without being asked.
    """

    def __init__(self, world: World, is_own_choice: bool, mesh: Any = None, *, is_on: bool = True) -> None:
        self._world = world
        self._is_own_choice = is_own_choice
        self._mesh = mesh
        self._is_on = self.is_due = check_bool("check_ranks", is_on)
        """Before the next batch."""

    def by_itself(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Compare if torch.distributed is initialised and it is clear which of its processes load this loader's batches.

        That is so where the ranks came from a mesh, or there is one for each process. Where the caller gave several
        processes the same rank (tensor parallelism), only a call of `Loader.check_ranks` says who takes part.
        """
        due, self.is_due = self.is_due and self._is_on, False
        if not due or not _is_distributed():
            return
        import torch.distributed as dist

        rank, size = dist.get_rank(), dist.get_world_size()
        if (
            self._mesh is None
            and not self._is_own_choice
            and (rank, size) != (self._world.rank, self._world.world_size)
        ):
            raise ConfigError(
                f"the environment says rank {self._world.rank} of {self._world.world_size}, torch.distributed rank {rank} of "
                f"{size}: processes would load the same rows, or lose some. Set RANK and WORLD_SIZE (torchrun does), or pass "
                "rank= and world_size=, or device_mesh=."
            )
        if self._mesh is not None:
            self.compare(state(), self._mesh.get_group(), _TIMEOUT_S)
        elif size == self._world.world_size > 1:
            self.compare(state(), None, _TIMEOUT_S)

    def compare(self, state: Mapping[str, Any], group: Any, timeout_s: float) -> None:
        """See `Loader.check_ranks`; `state` is the loader's."""
        if not _is_distributed():
            raise ConfigError(
                "check_ranks needs torch.distributed, which is not initialised: call torch.distributed.init_process_group first."
            )
        self.is_due = False
        facts = {
            "rank": self._world.rank,
            "world_size": self._world.world_size,
            **{name: state[name] for name in ("manifests", "config", "config_digest", "cursor", "cost_table_digest")},
        }
        compare_facts(_exchange(facts, group, timeout_s))


def _is_distributed() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _exchange(facts: Mapping[str, Any], group: Any, timeout_s: float) -> dict[int, dict[str, Any]]:
    """Return the facts of every process of the group, by its rank in the whole job."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_store

    me, members = dist.get_rank(), dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    if me not in members:
        raise ConfigError(f"check_ranks was called on rank {me}, which is not in the group of ranks {_said(members)}.")
    store = _get_default_store()
    place = f"{_PREFIX}/{'-'.join(map(str, members))}"
    # Each process counts its own checks, in the store, so that the n-th of one is laid beside the n-th of the others.
    number = store.add(f"{place}/count/{me}", 1)
    store.set(f"{place}/{number}/{me}", json.dumps(facts))
    found: dict[int, dict[str, Any]] = {}
    end, pause_s = time.monotonic() + timeout_s, _POLL_S[0]
    while True:
        is_last_look = time.monotonic() > end  # read before it: who was stopped in between looks once more
        for rank in members:
            # Looked at before it is read: reading what is not there would wait inside the store, deaf to Ctrl-C.
            if rank not in found and store.check([f"{place}/{number}/{rank}"]):
                found[rank] = json.loads(store.get(f"{place}/{number}/{rank}"))
        if len(found) == len(members):
            store.set(f"{place}/{number}/{me}/read", "1")
            if me == 0:
                _wait_for_readers(store, [f"{place}/{number}/{rank}/read" for rank in members])
            return dict(sorted(found.items()))
        if is_last_look:
            absent = [rank for rank in members if rank not in found]
            raise StageFailedError(
                f"{_said(absent)} did not come to check_ranks within {timeout_s:g} s, rank {me} did. Every process of the group "
                "must iterate its loader; where only some do, pass check_ranks=False to Loader, or a group to check_ranks."
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S[1])


def _wait_for_readers(store: Any, marks: list[str]) -> None:
    """Wait until every process has read what it needs of the store, which may end with this process; not for long.

    A short job may be over here before the others have looked a last time.
    """
    end, pause_s = time.monotonic() + _READ_TIMEOUT_S, _POLL_S[0]
    while not store.check(marks) and time.monotonic() < end:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S[1])


def compare_facts(facts: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise ConfigError if processes differ, naming those that do and each field; or if data-parallel ranks are not complete.

    Args:
        facts: Rank in the job → what that process has. All but `rank` must be the same.
    """
    shared = {rank: {k: v for k, v in fact.items() if k != "rank"} for rank, fact in facts.items()}
    texts = {rank: json.dumps(fact, sort_keys=True) for rank, fact in shared.items()}
    usual, _ = Counter(texts.values()).most_common(1)[0]  # of equally many, that of the lowest rank
    right = [rank for rank in texts if texts[rank] == usual]
    lines = []
    for rank, text in texts.items():
        if text != usual:
            fields = differing_fields(
                shared[rank], shared[right[0]], named=(f"rank {rank} has", f"{_said(right)} {_has(right)}")
            )
            # The digest of what differs differs, too; it counts where nothing else does.
            lines += [line for line in fields if not line.startswith("config_digest")] or fields
    if lines:
        raise ConfigError(
            "ranks would load different batches. Differing:\n  - "
            + "\n  - ".join(lines)
            + "\nBuild the same loader on every rank, and load the same state."
        )
    size = shared[right[0]]["world_size"]
    absent = sorted(set(range(size)) - {int(fact["rank"]) for fact in facts.values()})
    if absent:
        held = ", ".join(f"{fact['rank']} (process {rank})" for rank, fact in facts.items())
        raise ConfigError(
            f"data-parallel {_said(absent)} of world_size={size} belong{'' if len(absent) > 1 else 's'} to no process: the others hold {held}. Some rows of "
            "every global batch would be lost, others loaded twice. Give every data-parallel rank to a process."
        )


def _said(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _has(ranks: Sequence[int]) -> str:
    return "have" if len(ranks) > 1 else "has"
