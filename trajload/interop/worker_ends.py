"""What to raise where torch tells that a worker has ended, or that nothing came in time: who it was, and what to do."""

from __future__ import annotations

import multiprocessing.connection
from collections.abc import Sequence
from typing import Any

from trajload.errors import StageFailedError

__all__ = ["join_feeders", "tells_of_a_death", "worker_error"]

_END_TIMEOUT_S = 10.0
_FEEDER_TIMEOUT_S = 1.0
"""It has been told to end; one that writes to a full pipe, which nobody reads any more, never does."""
_ITS_OWN_END = (
    'It printed why, above this. A script that starts workers needs `if __name__ == "__main__":` around its main part: '
    "each worker imports the script."
)


def tells_of_a_death(err: BaseException) -> bool:
    """Whether torch raised this because a worker process has ended; its signal handler does so wherever Python is just then."""
    return type(err) is RuntimeError and str(err).startswith("DataLoader worker (pid")


def worker_error(
    workers: Sequence[Any], err: Exception, train_step: int, timeout_s: float = 0.0
) -> StageFailedError | None:
    """Return what to raise in place of an error that comes from torch's iterator; None if it is the worker's own.

    Args:
        workers: All of the iterator, by number.
        err: What torch raised.
        train_step: Whose batch was awaited.
        timeout_s: What torch was told to wait for one.
    """
    if not isinstance(err, RuntimeError):
        # It is on its way out: it closes its files, and ends only then.
        ending = multiprocessing.connection.wait([w.sentinel for w in workers], _END_TIMEOUT_S)
        for worker in (w for w in workers if w.sentinel in ending):
            worker.join(_END_TIMEOUT_S)
    dead = [(i, w) for i, w in enumerate(workers) if not w.is_alive()]
    if dead:
        said = ", ".join(f"worker {i} (pid {w.pid}) {_ending(w.exitcode)}" for i, w in dead)
        is_killed = any(w.exitcode is not None and w.exitcode < 0 for _, w in dead)
        why = "Was memory short?" if is_killed else _ITS_OWN_END
        return StageFailedError(
            f"{said} while train_step {train_step} was awaited. {why} The cursor stays at this train_step: a new loop "
            "starts new workers and goes on there."
        )
    if "timed out" in str(err):
        pids = ", ".join(str(w.pid) for w in workers)
        return StageFailedError(
            f"no batch within timeout={timeout_s:g} s while train_step {train_step} was awaited, from workers with pids {pids}. "
            "Raise timeout, or see what they do."
        )
    return None


def join_feeders(batches: Any) -> None:
    """Wait for the threads of this process that fed the workers of an iterator, which torch has told to end.

    They hold the last references to semaphores. A program that ended meanwhile would end them after a semaphore was
    removed and before multiprocessing's resource tracker heard of it, which then warns of a leak.
    """
    for queue in (*getattr(batches, "_index_queues", ()), getattr(batches, "_worker_result_queue", None)):
        if (feeder := getattr(queue, "_thread", None)) is not None:
            feeder.join(_FEEDER_TIMEOUT_S)


def _ending(exitcode: int | None) -> str:
    return (
        f"was killed by signal {-exitcode}"
        if exitcode is not None and exitcode < 0
        else f"ended with exit code {exitcode}"
    )
