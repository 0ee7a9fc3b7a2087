"""The main job, proved: train, be killed with SIGKILL, resume in a new process, and compare every batch and loss.

dataset ──▶ run A, never interrupted ───────────────────────────────▶ log A
   └──────▶ run B, killed in the middle ──▶ new process, from B's last checkpoint ──▶ log B
equal(log A, log B), train_step by train_step, and the weights at the end
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajload.demo.compare import Comparison, compare_logs
from trajload.demo.dataset import GENERATOR_VERSION, generate
from trajload.demo.process import config_path, run_and_kill, run_to_end
from trajload.demo.report import Phases, print_verdict
from trajload.demo.scene import EpisodeLength
from trajload.demo.train import (
    CHECKPOINTS,
    PICTURES_PER_WINDOW,
    LogLine,
    TrainConfig,
    make_loader,
    read_log,
    summary_path,
)
from trajload.errors import ConfigError, ResumeError
from trajload.storage.atomic import write_atomic
from trajload.storage.own_folder import check_own_folder
from trajload.types import PathLikeStr

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["DemoResult", "prepare_dataset", "run"]

NUM_EPISODES, TRAIN_STEPS = 24, 300
QUICK_NUM_EPISODES, QUICK_TRAIN_STEPS = 6, 48
_MEASURED_STEPS = 40
"""Train_steps of the loader's own speed."""
_MEASURED = ("windows_per_s", "pictures_per_s", "wait_ms_per_step", "step_ms", "wait_percent", "first_batch_s")
"""What a training process measures of itself."""
_MADE = re.compile(r"dataset-\d+-seed-?\d+|run-[ab]|contact_sheet\.png|result\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResult:
    """What the demo found out. `ok` is the verdict."""

    out: str
    dataset: str
    contact_sheet: str
    num_episodes: int
    num_windows: int
    train_steps: int
    killed_after: int
    """Train_steps that the killed process had logged."""
    resumed_from: int
    """Train_step of the checkpoint the new process continued from."""
    before_kill: Comparison
    after_resume: Comparison
    weights_equal: bool
    loss_first: float
    """Mean loss of the first tenth of the train_steps."""
    loss_last: float
    """Of the last tenth."""
    num_parameters: int
    windows_per_s: float
    """While training, like the next four."""
    pictures_per_s: float
    wait_ms_per_step: float
    step_ms: float
    wait_percent: float
    first_batch_s: float
    """From the start of the training code to its first batch."""
    loader_windows_per_s: float
    """With nothing to wait for the loader."""
    loader_pictures_per_s: float

    @property
    def ok(self) -> bool:
        """True where everything after the resume, and before the kill, equals the uninterrupted run."""
        return self.before_kill.equal and self.after_resume.equal and self.weights_equal

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def prepare_dataset(
    out: PathLikeStr, *, num_episodes: int, seed: int, length: EpisodeLength | None = None, phases: Phases | None = None
) -> Path:
    """Return the demo dataset at `out`, generated if it is not there.

    Raises:
        ConfigError: Another dataset stands there already.
    """
    path = Path(out)
    length = length or EpisodeLength()
    if (path / "manifest.json").is_file():
        from trajload.sources.open import open as open_dataset

        have = open_dataset(path).provenance()
        wanted = {
            "num_episodes": num_episodes,
            "seed": seed,
            "size": 64,
            "min_steps": length.min_steps,
            "max_steps": length.max_steps,
        }
        if have.get("arguments") != wanted or have.get("generator_version") != GENERATOR_VERSION:
            raise ConfigError(
                f"{str(path)!r} holds another dataset: got {have.get('arguments')}, expected {wanted}. "
                "Choose another folder, or remove this one."
            )
        return path
    with (phases or Phases(None)).phase("generate the dataset", num_episodes) as advance:
        return generate(
            path, num_episodes=num_episodes, seed=seed, length=length, progress=lambda done, total: advance(done)
        )


def run(
    out: PathLikeStr,
    *,
    num_episodes: int | None = None,
    train_steps: int | None = None,
    seed: int = 0,
    quick: bool = False,
    length: EpisodeLength | None = None,
    console: Console | None = None,
) -> DemoResult:
    """Run the demo in the folder `out` and return the verdict, which also stands in `out/result.json`.

    Args:
        out: Folder for the dataset (made once, then reused), the two runs (made anew), the contact sheet, the result.
        num_episodes: Of the dataset; 24 by default, 6 if `quick`.
        train_steps: Of each run; 300 by default, 48 if `quick`. At least 12.
        seed: Of dataset, order and weights.
        quick: Smaller defaults.
        length: Bounds on the steps of an episode.
        console: Where progress and the verdict are shown; None shows nothing.

    Raises:
        ConfigError: An argument is out of range, or `out` holds another dataset or anything else that no demo made.
        StageFailedError: A training process failed by itself.
    """
    num_episodes = num_episodes if num_episodes is not None else (QUICK_NUM_EPISODES if quick else NUM_EPISODES)
    train_steps = train_steps if train_steps is not None else (QUICK_TRAIN_STEPS if quick else TRAIN_STEPS)
    if train_steps < 12:
        raise ConfigError(f"train_steps={train_steps!r} is invalid: expected at least 12, to kill and resume between.")
    folder = Path(out)
    _check_out(folder)
    phases = Phases(console)
    dataset = prepare_dataset(
        folder / f"dataset-{num_episodes}-seed{seed}",
        num_episodes=num_episodes,
        seed=seed,
        length=length,
        phases=phases,
    )

    checkpoint_every = max(4, train_steps // 12)
    # Between two checkpoints, so that work is lost and must come out the same again.
    kill_after = checkpoint_every * (train_steps // checkpoint_every // 2) + (checkpoint_every + 1) // 2

    def config(run_name: str, log: str) -> TrainConfig:
        return TrainConfig(
            dataset=str(dataset),
            folder=str(folder / run_name),
            log=log,
            train_steps=train_steps,
            checkpoint_every=checkpoint_every,
            seed=seed,
        )

    whole, killed, resumed = (
        config("run-a", "log.jsonl"),
        config("run-b", "killed.jsonl"),
        config("run-b", "resumed.jsonl"),
    )
    for old in (whole, killed):
        shutil.rmtree(old.folder, ignore_errors=True)
    with phases.phase("train without interruption", train_steps) as advance:
        run_to_end(whole, on_step=advance)
    with phases.phase(f"train, and kill -9 after step {kill_after}", kill_after) as advance:
        run_and_kill(killed, kill_after=kill_after, on_step=advance)
    resumed_from = _newest_checkpoint(killed)
    with phases.phase(f"resume from step {resumed_from} in a new process", train_steps - resumed_from) as advance:
        run_to_end(resumed, on_step=advance)
    with phases.phase("draw a batch, and load without training", _MEASURED_STEPS) as advance:
        sheet = folder / "contact_sheet.png"
        speed = _draw_and_measure(whole, sheet, advance)

    runs = _Runs(whole, killed, resumed)
    result = _result(runs, out=folder, sheet=sheet, num_episodes=num_episodes, resumed_from=resumed_from, speed=speed)
    write_atomic(folder / "result.json", json.dumps(result.to_json(), indent=1).encode())
    if console is not None:
        print_verdict(console, result)
    return result


def _check_out(folder: Path) -> None:
    """Refuse a folder with files of others: folders of runs are removed in it."""
    check_own_folder(folder, argument="out", may_hold=lambda name: bool(_MADE.fullmatch(name)))
    for name, log in (("run-a", "log.jsonl"), ("run-b", "killed.jsonl")):
        run = folder / name
        if run.exists() and not config_path(run, log).is_file() and any(run.iterdir()):
            raise ConfigError(
                f"out={str(folder)!r} holds a folder {name!r} that no demo made, and would remove: choose another folder, or rename it."
            )


def _newest_checkpoint(config: TrainConfig) -> int:
    from trajload.checkpoint.store import Store

    found, _ = Store(Path(config.folder) / CHECKPOINTS, create=False).newest()
    if found is None:
        raise ResumeError(f"the killed run left no checkpoint in {config.folder!r}: expected one. Run the demo again.")
    return found.step


def _draw_and_measure(config: TrainConfig, path: Path, advance: Callable[[int], None]) -> float:
    """Draw batch 0 and return the windows per second of the loader with all CPUs and an idle consumer."""
    from trajload.view import contact_sheet

    with make_loader(config, num_workers=None) as loader:
        contact_sheet(loader.batch_at(0), path, max_rows=4)
        begin = 0.0
        for done, batch in enumerate(loader):
            if done == 0:
                begin = time.perf_counter()  # threads and caches are warm from here on
            elif done == _MEASURED_STEPS:
                break
            advance(done)
            del batch
        return config.global_batch_size * _MEASURED_STEPS / (time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class _Runs:
    whole: TrainConfig
    killed: TrainConfig
    resumed: TrainConfig


def _result(runs: _Runs, *, out: Path, sheet: Path, num_episodes: int, resumed_from: int, speed: float) -> DemoResult:
    whole, killed, resumed = (read_log(_log_path(c)) for c in (runs.whole, runs.killed, runs.resumed))
    summary, summary_resumed = (json.loads(summary_path(_log_path(c)).read_text()) for c in (runs.whole, runs.resumed))
    train_steps = runs.whole.train_steps
    tenth = max(1, train_steps // 10)
    return DemoResult(
        out=str(out),
        dataset=runs.whole.dataset,
        contact_sheet=str(sheet),
        num_episodes=num_episodes,
        num_windows=summary["num_windows"],
        train_steps=train_steps,
        killed_after=len(killed),
        resumed_from=resumed_from,
        before_kill=compare_logs(whole, killed, start=0, stop=len(killed)),
        after_resume=compare_logs(whole, resumed, start=resumed_from, stop=train_steps),
        weights_equal=summary["weights"] == summary_resumed["weights"],
        loss_first=_mean_loss(whole[:tenth]),
        loss_last=_mean_loss(whole[-tenth:]),
        num_parameters=summary["num_parameters"],
        loader_windows_per_s=speed,
        loader_pictures_per_s=speed * PICTURES_PER_WINDOW,
        **{name: summary[name] for name in _MEASURED},
    )


def _log_path(config: TrainConfig) -> Path:
    return Path(config.folder) / config.log


def _mean_loss(lines: list[LogLine]) -> float:
    return sum(line.loss_value for line in lines) / len(lines)
