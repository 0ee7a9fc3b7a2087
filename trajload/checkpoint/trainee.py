"""One training process of `assert_continues`.

It builds the user's training, goes on from the newest checkpoint, and writes a line for each step: what the step
returned, and the whole state leaf by leaf. It knows nothing of the run it will be compared with, and may be killed at any
instruction.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trajload.arguments import explains_calls
from trajload.checkpoint.targets import find_target
from trajload.errors import StageFailedError
from trajload.storage.atomic import write_atomic

__all__ = ["Spec", "Training", "run"]


@explains_calls
@dataclass(slots=True)
class Training:
    """What a `make` function of `assert_continues` returns.

    Attributes:
        state: Components, as for `Checkpointer`.
        step: Makes one update. What it returns is compared bit by bit: a loss, a batch, draws, a dict of them.
        rng: `Streams(...)` that the training draws from.
        rank_state: Components of each rank's own.
        close: Called at the end.
    """

    state: Mapping[str, Any]
    step: Callable[[], Any]
    rng: Any = None
    rank_state: Mapping[str, Any] | None = None
    close: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Everything a training process is told."""

    target: dict[str, Any]
    arguments: dict[str, Any]
    store: str
    log: str
    """Of rank 0; other ranks append their number."""
    steps: int
    every: int
    mode: str
    ranks: int = 1
    stop_at: int | None = None
    """Step after which the process does nothing more but wait to be killed; later where it would have saved nothing by then."""
    save_at_once: bool = False
    """Save again directly after the resume."""
    timeout_s: float = 60.0

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Spec:
        return cls(**json.loads(path.read_text()))


def train(spec: Spec, rank: int) -> None:
    """Train to the end, or until killed."""
    if spec.ranks > 1:
        import torch.distributed as dist

        _join(spec, rank)
    from trajload.checkpoint.checkpointer import Checkpointer
    from trajload.checkpoint.every import Every
    from trajload.checkpoint.trace import leaves_of, value_of

    training: Training = find_target(spec.target)(**spec.arguments)
    own = {} if training.rng is None else {"rng": training.rng}
    whole = {**training.state, **(training.rank_state or {}), **own}
    mode: Any = spec.mode
    with _Log(Path(spec.log if rank == 0 else f"{spec.log}.{rank}")) as log:
        with Checkpointer(
            spec.store,
            training.state,
            rng=training.rng,
            rank_state=training.rank_state,
            every=Every(steps=spec.every),
            mode=mode,
            timeout_s=spec.timeout_s,
        ) as ckpt:
            report = ckpt.resume()
            log.write({"resumed": report.step, "report": report.to_json(), "leaves": leaves_of(whole)})
            if spec.save_at_once and report.step is not None:
                ckpt.save(report.step)
                log.write({"saved": report.step if spec.mode == "sync" else None})
            done = report.step or 0
            stop_at = None if spec.stop_at is None else min(max(spec.stop_at, done + spec.every + 1), spec.steps - 1)
            for step in range(done + 1, spec.steps + 1):
                value = training.step()
                log.write({"step": step, "value": value_of(value), "leaves": leaves_of(whole)})
                if ckpt.step(step) and spec.mode == "sync":
                    log.write({"saved": step})
                if step == stop_at:
                    log.write({"stopped": step})
                    while True:
                        time.sleep(60.0)
        if training.close is not None:
            training.close()
        log.write({"end": True})
    if spec.ranks > 1:
        dist.barrier()  # rank 0 serves the store that the others' last words go through
        dist.destroy_process_group()


def _join(spec: Spec, rank: int) -> None:
    """Initialise torch.distributed. Rank 0 serves the others at a port of the system's choice, which it leaves in a file."""
    import torch.distributed as dist

    tcp_store: Any = dist.TCPStore  # type: ignore[attr-defined]
    note = Path(f"{spec.log}.port")
    if rank == 0:
        store = tcp_store("127.0.0.1", 0, spec.ranks, is_master=True, wait_for_workers=False)
        write_atomic(note, str(store.port).encode())
    else:
        end = time.monotonic() + spec.timeout_s
        while not note.exists():
            if time.monotonic() > end:
                raise StageFailedError(
                    f"rank 0 has not come up within {spec.timeout_s:g} s, rank {rank} waited for it."
                )
            time.sleep(0.005)
        store = tcp_store("127.0.0.1", int(note.read_text()), spec.ranks, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec.ranks)


class _Log:
    """Appends whole lines with one write each, so that a kill leaves at most one line cut short."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)

    def write(self, row: Mapping[str, Any]) -> None:
        data = (json.dumps(row) + "\n").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._descriptor)


def run(path: str, rank: int) -> None:
    """Be rank `rank` of the training whose spec stands at `path`; returns at its end."""
    spec = Spec.load(Path(path))
    # What a launcher sets, for loaders and user code that look at it.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(spec.ranks))
    train(spec, rank)
