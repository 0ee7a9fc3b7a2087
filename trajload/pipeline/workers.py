"""Who makes the batches: threads, worker processes, or what a measurement says. Never changes what they hold."""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trajload.checks import did_you_mean
from trajload.errors import ConfigError, described
from trajload.pipeline.interpreter import InterpreterUse

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.pipeline.engine import Engine
    from trajload.pipeline.process_pool import ProcessPool

__all__ = ["Batches", "WorkerChoice", "Workers", "check_timeout"]

_MAX_AUTO_PROCESSES = 16


class Batches(Protocol):
    """Batches of consecutive train_steps, made ahead: what `Engine.start` returns."""

    def check_process(self) -> None:
        """Raise ConfigError in a forked child."""
        ...

    def next(self) -> Batch | None:
        """Return the next batch, None at the end of a finite run."""
        ...

    def close(self) -> None:
        """Stop. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """The argument `workers`, checked."""

    kind: str
    """'threads', 'processes' or 'auto'."""
    num_processes: int = 0

    @classmethod
    def parse(cls, workers: str) -> WorkerChoice:
        """Return the choice, else raise ConfigError."""
        if isinstance(workers, str) and workers in ("threads", "auto"):
            return cls(workers)
        found = re.fullmatch(r"processes:([1-9][0-9]{0,3})", workers) if isinstance(workers, str) else None
        if found is None:
            raise ConfigError(
                f"workers={workers!r} is unusable: expected 'threads', 'processes:N' with N of at least 1, or 'auto'."
                f"{_meant(workers)}"
            )
        if not _has_processes():
            raise ConfigError(
                f"workers={workers!r} needs Linux (anonymous shared memory): this is {sys.platform}. Use workers='threads'."
            )
        return cls("processes", int(found[1]))


def _meant(workers: object) -> str:
    """Return what someone who passed a number, or almost one of the words, wanted to say."""
    text = str(workers) if isinstance(workers, (int, str)) and not isinstance(workers, bool) else ""
    if not text.isdecimal():
        return did_you_mean(text, ("threads", "auto", "processes:2"))
    number = int(text)
    threads = f" The number of decoder threads is num_workers={number}"
    return (
        f"{threads}, which leaves the work to the calling thread."
        if number == 0
        else (f"{threads}; {number} worker processes are workers='processes:{number}'.")
    )


def check_timeout(timeout_s: float | None) -> float | None:
    """Return `worker_timeout_s` if it is usable, else raise ConfigError."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise ConfigError(f"worker_timeout_s={timeout_s!r} is invalid: expected seconds above 0, or None for no limit.")
    return float(timeout_s)


class Workers:
    """Starts what makes the batches of one engine, and keeps processes from run to run.

    Args:
        workers: 'threads', 'processes:N' or 'auto'.
        timeout_s: See `Crew`.
    """

    def __init__(self, workers: str = "threads", timeout_s: float | None = None) -> None:
        self.choice = WorkerChoice.parse(workers)
        self.timeout_s = check_timeout(timeout_s)
        self.name = workers
        """What makes the batches now; of 'auto' once it has been decided."""
        self.why = "asked for"
        self.is_probing = False
        """Whether worker processes note what stops their interpreter: while a loader is measured."""
        self._setup = b""
        self._pool: ProcessPool | None = None
        self._num_processes = 0
        self._measured: dict[str, Any] | None = None

    def bind(self, engine: Engine) -> None:
        """Fix the number of processes, and pack what they are sent, so that what cannot be sent is known at once.

        Raises:
            ConfigError: Something cannot be sent to a process, or no decoder thread is asked for.
        """
        if self.choice.kind == "auto":
            self._bind_auto(engine)
        elif self.choice.kind == "processes":
            if engine.num_workers == 0:
                raise ConfigError(
                    f"workers={self.name!r} with num_workers=0: expected at least one decoder thread in each process, or None."
                )
            self._num_processes = min(self.choice.num_processes, _num_rows(engine))
            engine.pool.check_share(self._num_processes)
            self._setup = pack_engine(engine, self._num_processes)
            if self._num_processes < self.choice.num_processes:
                self.name = f"processes:{self._num_processes}"
                self.why = f"asked for {self.choice.num_processes}, but a batch has {_num_rows(engine)} rows here"

    def _bind_auto(self, engine: Engine) -> None:
        num = min(engine.num_workers, _num_rows(engine), _MAX_AUTO_PROCESSES)
        self.name, self.why = "threads", "auto: not yet measured"
        if not _has_processes():
            self.why = f"auto: {sys.platform} has no anonymous shared memory"
        elif num < 2:
            self.why = "auto: one row or one decoder thread: nothing to divide"
        else:
            try:
                self._setup = pack_engine(engine, num)
                self._num_processes = num
            except ConfigError as err:
                self.why = f"auto: {err.message}"

    def start(self, engine: Engine, train_step: int) -> Batches:
        """Return batches from `train_step` on."""
        if self.choice.kind == "threads" or not self._num_processes:
            return engine.start_threads(train_step)
        if self.choice.kind == "auto" and self.is_open:
            from trajload.pipeline.auto import AutoRun

            return AutoRun(engine, self, train_step)
        return self.pool(engine).run(train_step) if self.name != "threads" else engine.start_threads(train_step)

    @property
    def is_open(self) -> bool:
        """Whether 'auto' has not decided yet."""
        return self.choice.kind == "auto" and self.why == "auto: not yet measured"

    def decide(self, engine: Engine, name: str, why: str, measured: dict[str, Any] | None = None) -> None:
        """Fix what 'auto' chose, for all runs to come, and what it had measured."""
        num = WorkerChoice.parse(name).num_processes
        engine.pool.check_share(max(num, 1))
        self.name, self.why, self._measured = name, why, measured
        if num and num != self._num_processes:
            self._setup, self._num_processes = pack_engine(engine, num), num

    @property
    def num_processes(self) -> int:
        """Processes that are used, or that 'auto' may use; 0 for none."""
        return self._num_processes

    def pool(self, engine: Engine) -> ProcessPool:
        """Return the processes; started with the first run."""
        from trajload.pipeline.process_pool import ProcessPool

        if self._pool is not None and self._pool.is_of_another_process:
            self._pool = None  # this is a forked child: it gets processes of its own
        if self._pool is None:
            self._pool = ProcessPool(
                engine.builder, self._setup, self._num_processes, engine.start_depth, self.timeout_s
            )
        self._pool.probe_interpreters(self.is_probing)
        return self._pool

    def interpreter_uses(self) -> dict[int, InterpreterUse]:
        """Return what stopped the interpreter of each worker process, as far as that was noted."""
        return {} if self._pool is None else self._pool.interpreter_uses()

    def close(self) -> None:
        """End the processes. Idempotent; a later run starts them again."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def figures(self) -> dict[str, Any]:
        """Return what `Loader.stats` tells."""
        none = {"worker_pids": [], "worker_respawns": 0, "worker_hangs": 0}
        return {
            "workers": self.name,
            "workers_why": self.why,
            "workers_measured": self._measured,
            **(none if self._pool is None else self._pool.figures()),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return (Workers, ())  # a worker process works with threads


def _has_processes() -> bool:
    return sys.platform == "linux" and hasattr(os, "memfd_create") and hasattr(os, "eventfd")


def _num_rows(engine: Engine) -> int:
    rows = engine.builder.rows
    return int(rows.stop - rows.start)


# ---- what is sent ----


def pack_engine(engine: Engine, num_processes: int) -> bytes:
    """Return the engine as a worker unpacks it: datasets, order, transforms; no memory, no open file.

    Raises:
        ConfigError: Something in it cannot be sent; the message says what, and what to do.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=5).dump(engine.for_worker(max(1, engine.num_workers // num_processes)))
    except ConfigError:
        raise
    except Exception as err:
        raise ConfigError(
            f"the loader cannot be sent to worker processes: {described(err)}. "
            "Lambdas, local functions and open files cannot; define transforms in a module, or use workers='threads'."
        ) from err
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Refuses what only the user's script defines: a worker does not run the script again, so it would not find it."""

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and hasattr(obj, "__qualname__"):
            raise ConfigError(
                f"{obj.__qualname__!r} is defined in the script that was started, or in a notebook: worker processes cannot "
                "import it. Move it to a module that the script imports, or use workers='threads'."
            )
        return NotImplemented
