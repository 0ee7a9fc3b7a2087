"""One training process of the demo: `python -m trajload.demo.train config.json`.

Loads windows, trains the world model, logs every train_step, checkpoints model, optimiser and loader together, and
continues from the newest checkpoint when there is one. It knows nothing of the run it will be compared with, and may
be killed at any instruction.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajload.errors import ConfigError, ResumeError
from trajload.storage.atomic import write_atomic

if TYPE_CHECKING:
    from trajload.loader import Loader

__all__ = [
    "CHECKPOINTS",
    "NUM_STEPS",
    "PICTURES_PER_WINDOW",
    "LogLine",
    "TrainConfig",
    "make_loader",
    "read_log",
    "summary_path",
    "train",
]

CHECKPOINTS = "checkpoints"
"""Folder of the store in that of a run."""
NUM_STEPS = 16
"""Steps of a window."""
PICTURES_PER_WINDOW = 3 * NUM_STEPS
"""Of two cameras and depth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Everything a training process is told."""

    dataset: str
    folder: str
    """Of this run: its checkpoints, logs and summary."""
    log: str
    """Name of the log file in `folder`; each process writes its own."""
    train_steps: int
    checkpoint_every: int
    seed: int = 7
    global_batch_size: int = 16
    num_workers: int = 1
    is_killed: bool = False
    """Whether someone kills it on the way: where the kill comes late, it waits for it before its last train_step."""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> TrainConfig:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True)
class LogLine:
    """What one train_step did, exactly: two runs are equal if their lines are."""

    train_step: int
    digest: str
    """Of the batch."""
    loss: str
    """`float.hex()`: no digit is lost in print."""

    @property
    def loss_value(self) -> float:
        return float.fromhex(self.loss)


def read_log(path: Path) -> list[LogLine]:
    """Return the whole lines of a log, in order; a line cut short by a kill does not count."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [LogLine(**json.loads(line)) for line in text.split("\n")[:-1]]


def summary_path(log: Path) -> Path:
    """Return where the process that wrote `log` leaves its summary when it comes to its end."""
    return log.with_name(f"{log.name}.summary.json")


def make_loader(config: TrainConfig, *, num_workers: int | None) -> Loader:
    """Return the demo's loader: both cameras, depth and proprioception on their own clocks, action, reward, text."""
    from trajload.loader import Loader
    from trajload.spec import Image, Signal, Window

    return Loader(
        config.dataset,
        window=Window(num_steps=NUM_STEPS, pad="edge"),
        global_batch_size=config.global_batch_size,
        seed=config.seed,
        order="shuffled",
        streams={
            "cam_front": Image(size=(64, 64)),
            "cam_side": Image(size=(64, 64)),
            "depth": Image(),
            "proprioception": Signal(align="nearest"),
            "action": Signal(),
            "reward": Signal(),
            "language": None,
        },
        # one process, whatever a launcher around the demo has put into RANK and WORLD_SIZE
        rank=0,
        world_size=1,
        num_workers=num_workers,
    )


def train(config: TrainConfig) -> dict[str, Any]:
    """Train to `config.train_steps` and return the summary, which is also written to `<log>.summary.json`.

    Continues from the newest checkpoint in the run's folder. Sets the process's torch to one thread and to
    deterministic algorithms, so call it in a process of its own.

    Raises:
        ResumeError: The checkpoint lies at or beyond the wanted end, or is of another training.
    """
    import torch

    from trajload.checkpoint.checkpointer import Checkpointer
    from trajload.checkpoint.entries import Keep
    from trajload.checkpoint.every import Every
    from trajload.demo.model import make_model, make_optimizer, weights_digest

    begin = time.perf_counter()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # It would fill fresh memory with NaN, to find reads of what nobody wrote: a twelfth of the time, and not needed here.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    folder = Path(config.folder)
    model = make_model(config.seed)
    optimizer = make_optimizer(model)
    log = _Log(folder / config.log)
    with (
        log,
        make_loader(config, num_workers=config.num_workers) as loader,
        Checkpointer(
            folder / CHECKPOINTS,
            {"model": model, "optimizer": optimizer, "loader": loader},
            every=Every(steps=config.checkpoint_every),
            keep=Keep(last=2),
            mode="sync",
        ) as checkpointer,
    ):
        report = checkpointer.resume()
        if report.step is not None and report.step >= config.train_steps:
            raise ResumeError(
                f"nothing to resume: the checkpoint has {report.step} train_steps done, expected fewer than "
                f"{config.train_steps}. Ask for more train_steps."
            )
        first_step = loader.train_step
        meter = _Meter(begin)
        for batch in meter.watch(iter(loader)):
            losses = model.losses(batch)
            optimizer.zero_grad()
            losses.total.backward()
            optimizer.step()
            log.write(LogLine(batch.train_step, batch.digest(), float(losses.total.item()).hex()))
            done = batch.train_step + 1
            if done == config.train_steps:
                checkpointer.save(done)
                break
            checkpointer.step(done)
            if config.is_killed and done == config.train_steps - 1:
                time.sleep(1e6)
        stats = loader.stats()
        summary = {
            "first_train_step": first_step,
            "train_steps": config.train_steps,
            "weights": weights_digest(model),
            "num_parameters": sum(p.numel() for p in model.parameters()),
            "num_windows": loader.num_windows,
            **meter.summary(rows=config.global_batch_size, pictures_per_row=PICTURES_PER_WINDOW),
            "loader": {key: stats[key] for key in ("seconds", "frames", "bytes_read", "prefetch") if key in stats},
        }
    write_atomic(summary_path(folder / config.log), json.dumps(summary, indent=1).encode())
    return summary


class _Log:
    """Appends whole lines with one write each, so that a kill leaves at most one line cut short."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)

    def write(self, line: LogLine) -> None:
        os.write(self._descriptor, (json.dumps(asdict(line)) + "\n").encode())

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._descriptor)


class _Meter:
    """Times the consumer: how long it waited for batches and how long it worked. The first batch counts apart."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self.first_batch_s = 0.0
        self.wait_s = 0.0
        self.work_s = 0.0
        self.num_waits = 0

    def watch(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield `batches`, timed; closing this closes them."""
        try:
            batch = next(batches)
            self.first_batch_s = time.perf_counter() - self._begin
            while True:
                before = time.perf_counter()
                yield batch
                between = time.perf_counter()
                batch = next(batches)
                self.work_s += between - before
                self.wait_s += time.perf_counter() - between
                self.num_waits += 1
        except StopIteration:
            return
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def summary(self, *, rows: int, pictures_per_row: int) -> Mapping[str, float]:
        seconds = max(self.wait_s + self.work_s, 1e-9)
        waits = max(self.num_waits, 1)
        return {
            "first_batch_s": self.first_batch_s,
            "windows_per_s": rows * self.num_waits / seconds,
            "pictures_per_s": rows * pictures_per_row * self.num_waits / seconds,
            "wait_ms_per_step": 1000.0 * self.wait_s / waits,
            "step_ms": 1000.0 * seconds / waits,
            "wait_percent": 100.0 * self.wait_s / seconds,
        }


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        raise ConfigError(f"expected one argument, the path of a config: got {argv!r}.")
    train(TrainConfig.load(Path(argv[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
