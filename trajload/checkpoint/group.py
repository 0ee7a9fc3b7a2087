"""The processes that save one checkpoint together, and how they come to one answer.

What is said goes through the key-value store of torch.distributed under keys of our own, and every wait has a limit. No
collective is used: a save in a background thread never meets the collectives of the training loop, no device is needed,
and a process that has died is noticed instead of waited for.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from trajload.errors import CheckpointAbortedError, CheckpointError, ConfigError

__all__ = ["Alone", "Group", "Together", "find_group"]

_POLL_S = (0.0005, 0.05)
"""First and longest pause between two looks for what is not there yet."""
_GRACE_S = 3.0
"""So much longer than rank 0 the others wait, so that its answer names who is absent before they give up."""
_PREFIX = "trajload/checkpoint"

Answers = dict[int, Any]
"""Rank → what it said, as JSON gives it back."""


class Group:
    """Rank, number of ranks, and two ways of talking. `rank` counts inside the group."""

    rank: int
    world: int

    def tell(self, topic: str, value: Any, timeout_s: float) -> Any:
        """Return on every rank what rank 0 gave as `value`."""
        raise NotImplementedError

    def decide(
        self,
        topic: str,
        mine: Any,
        verdict: Callable[[Answers, list[int]], Any],
        timeout_s: float,
        *,
        is_bad: Callable[[Any], bool] = lambda answer: False,
    ) -> Any:
        """Return on every rank what `verdict` makes of the answers of all, on rank 0.

        Args:
            topic: Names this decision; never used twice.
            mine: What this rank says, JSON-able.
            verdict: (answers, ranks that did not answer in time) → JSON-able; called on rank 0 only.
            timeout_s: How long rank 0 waits for the others; they wait a little longer for what it makes of it.
            is_bad: Whether an answer makes it pointless to wait for more.

        Raises:
            CheckpointAbortedError: Rank 0 said nothing in time, or the store is gone.
        """
        raise NotImplementedError


class Alone(Group):
    """A process by itself."""

    rank, world = 0, 1

    def tell(self, topic: str, value: Any, timeout_s: float) -> Any:
        return value

    def decide(
        self,
        topic: str,
        mine: Any,
        verdict: Callable[[Answers, list[int]], Any],
        timeout_s: float,
        *,
        is_bad: Callable[[Any], bool] = lambda answer: False,
    ) -> Any:
        return verdict({0: mine}, [])


class Together(Group):
    """Several processes that share a torch store.

    Args:
        store: Any `torch.distributed.Store`.
        rank: Of this process in the group.
        world: Processes of the group.
        place: Prefix of all keys; the same in every process, and of no other group.
    """

    def __init__(self, store: Any, rank: int, world: int, place: str) -> None:
        self.rank, self.world = rank, world
        self._store = store
        self._place = place
        self._said: dict[str, list[str]] = {}

    def tell(self, topic: str, value: Any, timeout_s: float) -> Any:
        key = f"{self._place}/{topic}"
        if self.rank == 0:
            self._set(key, value)
            self._said.setdefault(_strand(topic), []).append(key)
            return json.loads(json.dumps(value))
        return self._wait_for(key, timeout_s, topic)

    def decide(
        self,
        topic: str,
        mine: Any,
        verdict: Callable[[Answers, list[int]], Any],
        timeout_s: float,
        *,
        is_bad: Callable[[Any], bool] = lambda answer: False,
    ) -> Any:
        key = f"{self._place}/{topic}"
        if self.rank != 0:
            self._set(f"{key}/{self.rank}", mine)
            return self._wait_for(f"{key}/verdict", timeout_s + _GRACE_S, topic)
        answers, absent = self._collect(key, mine, timeout_s, is_bad)
        said = verdict(answers, absent)
        self._set(f"{key}/verdict", said)
        mine_to_drop = [f"{key}/{rank}" for rank in range(1, self.world)] + [f"{key}/verdict"]
        before = self._said.get(_strand(topic), [])
        if len(answers) == self.world:
            self._forget(before)
            before = []
        self._said[_strand(topic)] = [*before, *mine_to_drop]
        return said

    def _collect(
        self, key: str, mine: Any, timeout_s: float, is_bad: Callable[[Any], bool]
    ) -> tuple[Answers, list[int]]:
        found: Answers = {0: mine}
        end, pause_s = time.monotonic() + timeout_s, _POLL_S[0]
        while len(found) < self.world and not any(map(is_bad, found.values())):
            # Read before the look: who was stopped, or got no CPU, in between has not seen what came meanwhile.
            before, is_last_look = len(found), time.monotonic() > end
            for rank in range(1, self.world):
                if rank not in found and self._has(f"{key}/{rank}"):
                    found[rank] = self._get(f"{key}/{rank}")
            if len(found) == before:
                if is_last_look:
                    return found, [rank for rank in range(self.world) if rank not in found]
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _POLL_S[1])
        return dict(sorted(found.items())), []

    def _wait_for(self, key: str, timeout_s: float, topic: str) -> Any:
        end, pause_s = time.monotonic() + timeout_s, _POLL_S[0]
        # Looked at before it is read: reading what is not there would wait inside the store, deaf to Ctrl-C, and
        # would hold up the training loop, which may use the same connection.
        while True:
            is_last_look = time.monotonic() > end
            if self._has(key):
                return self._get(key)
            if is_last_look:
                raise CheckpointAbortedError(
                    f"rank 0 said nothing about {topic.split('/')[0]!r} within {timeout_s:g} s, rank {self.rank} waited for it. "
                    "It has died, hangs, or did not come to the same call: every rank must call the checkpointer alike."
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S[1])

    def _forget(self, keys: list[str]) -> None:
        """Delete what was said before a decision that every rank has come to: all have read it."""
        for key in keys:
            with contextlib.suppress(Exception):  # not every store can delete
                self._store.delete_key(key)

    def _set(self, key: str, value: Any) -> None:
        text = json.dumps(value)
        self._call(lambda: self._store.set(key, text))

    def _get(self, key: str) -> Any:
        return json.loads(self._call(lambda: self._store.get(key)))

    def _has(self, key: str) -> bool:
        return bool(self._call(lambda: self._store.check([key])))

    def _call(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except RuntimeError as err:  # torch raises its own kinds of RuntimeError: connection reset, broken pipe
            raise CheckpointAbortedError(
                f"rank {self.rank} cannot reach torch.distributed's store: {err}. The process that serves it has probably died."
            ) from err


def _strand(topic: str) -> str:
    """Return which thread talks about `topic`: what one thread has read says nothing of the other."""
    return "background" if topic.startswith("save/") else "foreground"


def find_group(group: Any = None) -> Group:
    """Return the group of a torch process group; of the default one if there is any; else of this process alone.

    Raises:
        ConfigError: This process is not a member.
    """
    import sys

    # Whoever has initialised it has imported it.
    if group is None and "torch.distributed" not in sys.modules:
        return Alone()
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        if group is not None:
            raise ConfigError(
                "group= was given, but torch.distributed is not initialised: call init_process_group first."
            )
        return Alone()
    from torch.distributed.distributed_c10d import _get_default_store

    me = dist.get_rank()
    members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    if me not in members:
        raise ConfigError(
            f"rank {me} is not in the group of ranks {members}: build the Checkpointer on its members only."
        )
    if len(members) == 1:
        return Alone()
    store = _get_default_store()
    place = f"{_PREFIX}/{'-'.join(map(str, members))}"
    # Each process counts the groups it makes, in the store, so that the n-th of one talks with the n-th of the others.
    number = store.add(f"{place}/count/{me}", 1)
    return Together(store, members.index(me), len(members), f"{place}/{number}")


def differing(answers: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return a line for each field in which a rank differs from rank 0."""
    from trajload.pipeline.state import differing_fields

    lines = []
    for rank, answer in answers.items():
        if rank and answer != answers[0]:
            lines += differing_fields(answer, answers[0], named=(f"rank {rank} has", "rank 0 has"))
    return lines


def missing(absent: list[int], what: str, timeout_s: float) -> CheckpointError:
    """Return the error of ranks that did not come."""
    ranks = ", ".join(map(str, absent))
    return CheckpointAbortedError(
        f"rank{'s' if len(absent) > 1 else ''} {ranks} did not come to {what} within {timeout_s:g} s: died, hanging, or not "
        "called there. Every rank must call the checkpointer alike."
    )
