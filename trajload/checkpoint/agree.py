"""Whether all ranks are at the same point, asked before a byte of a save is written."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trajload.checkpoint.group import Answers, Group, differing, missing
from trajload.errors import CheckpointAbortedError, CheckpointMismatchError, TrajloadError, described

__all__ = ["Agreed", "agree"]


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks know of a save that is about to begin."""

    nonce: str
    """Of this save; no other has it."""
    bytes: int
    """Of the files of all ranks."""


def agree(
    group: Group, topic: str, step: int, look: Callable[[], tuple[Mapping[str, Any], int]], timeout_s: float
) -> Agreed:
    """Return what is common to a save of all ranks, if their facts are the same.

    Args:
        group: Who saves together.
        topic: Names this agreement.
        step: For messages.
        look: Takes this rank's state, and returns its facts and the bytes of its files. Where it raises, the other ranks are
            told at once instead of waiting for this one.
        timeout_s: How long rank 0 waits for the others.

    Raises:
        CheckpointMismatchError: Facts differ; ranks and fields are named.
        CheckpointAbortedError: A rank did not come here in time, or could not give its state.
    """
    failed: Exception | None = None
    try:
        facts, num_bytes = look()
        mine: dict[str, Any] = {"facts": facts, "bytes": num_bytes}
    except Exception as err:  # whatever it is: it leaves this function, and must not leave the others waiting
        failed = err
        mine = {"failed": err.message if isinstance(err, TrajloadError) else described(err)}

    def verdict(said: Answers, absent: list[int]) -> dict[str, Any]:
        if failures := {rank: answer["failed"] for rank, answer in said.items() if "failed" in answer}:
            rank, why = min(failures.items())
            return {"error": f"step {step} was not saved, since rank {rank} could not give its state: {why}"}
        if absent:
            return {"error": missing(absent, f"the save of step {step}", timeout_s).message}
        lines = differing({rank: answer["facts"] for rank, answer in said.items()})
        if lines:
            return {"differing": lines}
        return {"nonce": uuid.uuid4().hex, "bytes": sum(answer["bytes"] for answer in said.values())}

    said = group.decide(topic, mine, verdict, timeout_s, is_bad=lambda answer: "failed" in answer)
    if failed is not None:
        raise failed
    if "error" in said:
        raise CheckpointAbortedError(said["error"])
    if "differing" in said:
        raise CheckpointMismatchError(
            f"ranks are not at the same point, so nothing of step {step} was written. Differing:\n  - "
            + "\n  - ".join(said["differing"])
            + "\nCall the checkpointer after the same update on every rank, with the same state."
        )
    return Agreed(said["nonce"], said["bytes"])
