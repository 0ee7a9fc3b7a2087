"""Runs a training process of the demo, watches its log, and kills it where asked."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trajload.demo.train import TrainConfig
from trajload.errors import StageFailedError

__all__ = ["config_path", "run_and_kill", "run_to_end"]

_POLL_S = 0.01
_DEADLINE_S = 1200.0
"""A training process that takes longer is hung."""

OnStep = Callable[[int], None]
"""Called with the train_steps that this process has logged so far."""


def run_to_end(config: TrainConfig, *, on_step: OnStep) -> None:
    """Run a training process to its end.

    Raises:
        StageFailedError: It failed or hung; the message ends with what it wrote to stderr.
    """
    code, stderr = _watch(config, on_step=on_step, kill_after=None)
    if code != 0:
        raise StageFailedError(f"the training process failed with exit code {code}, expected 0:\n{stderr[-4000:]}")


def run_and_kill(config: TrainConfig, *, kill_after: int, on_step: OnStep) -> None:
    """Run a training process and send it SIGKILL once it has logged `kill_after` train_steps, or somewhat more.

    However late this process gets a CPU, the other one is not through before: it does not make its last train_step.

    Raises:
        StageFailedError: It ended by itself before it could be killed.
    """
    config = replace(config, is_killed=kill_after < config.train_steps)
    code, stderr = _watch(config, on_step=on_step, kill_after=kill_after)
    if code != -9:
        raise StageFailedError(
            f"the training process ended with exit code {code} before it was killed, expected -9 (SIGKILL) after "
            f"{kill_after} train_steps:\n{stderr[-4000:]}"
        )


def config_path(folder: Path, log: str) -> Path:
    """Return where a run in `folder` finds its configuration: the first file of a run."""
    return folder / f"{log}.config.json"


def _watch(config: TrainConfig, *, on_step: OnStep, kill_after: int | None) -> tuple[int, str]:
    folder = Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    log, stderr_path = folder / config.log, folder / f"{config.log}.stderr"
    config_file = config_path(folder, config.log)
    config.save(config_file)
    # The log of an earlier process would be taken for this one's.
    log.unlink(missing_ok=True)
    lines = _LineCounter(log)
    with stderr_path.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "trajload.demo.train", str(config_file)], stdin=subprocess.DEVNULL, stderr=stderr
        )
        try:
            deadline = time.monotonic() + _DEADLINE_S
            while True:
                code = process.poll()
                num_lines = lines.count()
                on_step(num_lines)
                if code is not None:
                    break
                if kill_after is not None and num_lines >= kill_after:
                    process.kill()
                    process.wait()
                    on_step(lines.count())
                    code = process.returncode
                    break
                if time.monotonic() > deadline:
                    raise StageFailedError(
                        f"the training process is hung: {num_lines} train_steps after {_DEADLINE_S:.0f} s, "
                        f"expected {config.train_steps}. Its folder is {config.folder!r}."
                    )
                time.sleep(_POLL_S)
        finally:
            # Also on Ctrl-C: who starts a process ends it.
            if process.poll() is None:
                process.kill()
                process.wait()
    return code, stderr_path.read_text(errors="replace")


class _LineCounter:
    """Counts the whole lines of a file that another process appends to, reading only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._num_lines = 0

    def count(self) -> int:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return 0
        self._offset += len(new)
        self._num_lines += new.count(b"\n")
        return self._num_lines
