"""Whether all ranks are at the same point, asked before a byte of a save is written."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trajload.checkpoint.group import Answers, Group, differing, missing
from trajload.errors import CheckpointAbortedError, CheckpointMismatchError

__all__ = ["Agreed", "agree"]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks know of a save that is about to begin."""

    nonce: str
    """Of this save; no other has it."""
    bytes: int
    """Of the files of all ranks."""


def agree(group: Group, topic: str, facts: Mapping[str, Any], num_bytes: int, timeout_s: float) -> Agreed:
    """Return what is common to a save of all ranks, if `facts` are the same on each.

    Raises:
        CheckpointMismatchError: They are not; ranks and fields are named.
        CheckpointAbortedError: A rank did not come here in time.
    """

    def verdict(said: Answers, absent: list[int]) -> dict[str, Any]:
        if absent:
            return {"error": missing(absent, f"the save of step {facts['step']}", timeout_s).message}
        lines = differing({rank: answer["facts"] for rank, answer in said.items()})
        if lines:
            return {"differing": lines}
        return {"nonce": uuid.uuid4().hex, "bytes": sum(answer["bytes"] for answer in said.values())}

    said = group.decide(topic, {"facts": facts, "bytes": num_bytes}, verdict, timeout_s)
    if "error" in said:
        raise CheckpointAbortedError(said["error"])
    if "differing" in said:
        raise CheckpointMismatchError(
            f"ranks are not at the same point, so nothing of step {facts['step']} was written. Differing:\n  - "
            + "\n  - ".join(said["differing"])
            + "\nCall the checkpointer after the same update on every rank, with the same state."
        )
    return Agreed(said["nonce"], said["bytes"])
