"""The main job at small scale, for real: processes, SIGKILL, resume, comparison."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from trajload.checkpoint.store import Store
from trajload.demo import EpisodeLength
from trajload.demo.compare import compare_logs
from trajload.demo.job import DemoResult, prepare_dataset, run
from trajload.demo.process import run_and_kill, run_to_end
from trajload.demo.report import print_verdict
from trajload.demo.train import TrainConfig, read_log
from trajload.errors import ConfigError, StageFailedError

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]

LENGTH = EpisodeLength(24, 40)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoResult, str]:
    """The demo's result and what it showed, run once."""
    shown = io.StringIO()
    console = Console(file=shown, width=120)
    out = tmp_path_factory.mktemp("demo-job")
    return run(out, num_episodes=4, train_steps=20, seed=1, length=LENGTH, console=console), shown.getvalue()


def test_killed_and_resumed_run_equals_the_uninterrupted_one(finished: tuple[DemoResult, str]) -> None:
    """Every batch digest and loss after the resume, and the weights at the end, are those of the run that was left alone."""
    result, _ = finished
    assert result.ok
    assert result.after_resume.equal and result.before_kill.equal and result.weights_equal
    # A slow machine may get past step 10 before it is killed, but not to the end.
    assert result.resumed_from in (8, 12, 16) and result.after_resume.num_compared == 20 - result.resumed_from
    assert 10 <= result.killed_after < 20 and result.killed_after >= result.resumed_from
    assert (result.train_steps, result.num_episodes) == (20, 4)


def test_logs_on_disk_bear_the_verdict_out(finished: tuple[DemoResult, str]) -> None:
    """Compared again from the files: the killed process really stopped early, and the new one took over at its checkpoint."""
    out = Path(finished[0].out)
    whole, killed, resumed = (
        read_log(out / name) for name in ("run-a/log.jsonl", "run-b/killed.jsonl", "run-b/resumed.jsonl")
    )
    assert [line.train_step for line in whole] == list(range(20))
    start = finished[0].resumed_from
    assert len(killed) == finished[0].killed_after
    assert [line.train_step for line in resumed] == list(range(start, 20))
    assert resumed == whole[start:] and killed == whole[: len(killed)]
    assert len({line.digest for line in whole}) == 20
    assert not (out / "run-b" / "killed.jsonl.summary.json").exists()
    assert [commit.step for commit in Store(out / "run-b" / "checkpoints", create=False).commits()] == [16, 20]
    stored = json.loads((out / "result.json").read_text())
    assert stored["ok"] is True and stored["resumed_from"] == start


def test_verdict_and_picture_are_shown(finished: tuple[DemoResult, str]) -> None:
    """People are told each phase, the comparison, the speed and where the picture is."""
    result, shown = finished
    for text in (
        "train without interruption",
        "kill -9",
        "in a new process",
        "EQUAL",
        "windows/s",
        "ms a train_step",
        "loader alone",
        "[8, 20)",
    ):
        assert text in shown
    assert "DIFFERENT" not in shown and "NOT EQUAL" not in shown
    assert Path(result.contact_sheet).read_bytes().startswith(b"\x89PNG")
    assert result.windows_per_s > 0 and 0 <= result.wait_percent <= 100


def test_difference_makes_the_verdict_not_equal(finished: tuple[DemoResult, str]) -> None:
    """One other digest, and the demo says so, and where."""
    result, _ = finished
    whole = read_log(Path(result.out) / "run-a" / "log.jsonl")
    tampered = [*whole[8:17], replace(whole[17], digest="other"), *whole[18:]]
    worse = replace(result, after_resume=compare_logs(whole, tampered, start=8, stop=20))
    shown = io.StringIO()
    print_verdict(Console(file=shown, width=120), worse)
    assert not worse.ok
    assert "NOT EQUAL: after the resume, train_step 17 has another batch" in shown.getvalue()
    assert not replace(result, weights_equal=False).ok


def test_dataset_is_reused_and_another_one_refused(finished: tuple[DemoResult, str]) -> None:
    """A second run takes the dataset that is there, unless it is not the one wanted."""
    path = Path(finished[0].dataset)
    before = (path / "manifest.json").stat().st_mtime_ns
    assert prepare_dataset(path, num_episodes=4, seed=1, length=LENGTH) == path
    assert (path / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"holds another dataset: got .*'num_episodes': 4"):
        prepare_dataset(path, num_episodes=5, seed=1, length=LENGTH)


def test_process_that_fails_or_ends_too_early_is_reported(finished: tuple[DemoResult, str], tmp_path: Path) -> None:
    """A training process that dies by itself is an error with its own message, never a silent success."""
    config = TrainConfig(
        dataset=str(tmp_path / "nowhere"),
        folder=str(tmp_path / "run"),
        log="log.jsonl",
        train_steps=4,
        checkpoint_every=2,
    )
    with pytest.raises(StageFailedError, match=r"exit code 1(.|\n)*nowhere"):
        run_to_end(config, on_step=lambda done: None)
    whole = replace(config, dataset=finished[0].dataset)
    with pytest.raises(StageFailedError, match="ended with exit code 0 before it was killed"):
        run_and_kill(whole, kill_after=99, on_step=lambda done: None)
    with pytest.raises(StageFailedError, match="nothing to resume: the checkpoint has 4 train_steps done"):
        run_to_end(whole, on_step=lambda done: None)


def test_process_that_is_to_be_killed_waits_however_late_the_kill_comes(
    finished: tuple[DemoResult, str], tmp_path: Path
) -> None:
    """Who watches it looks away until it has made all train_steps but the last: it is killed all the same."""
    config = TrainConfig(
        dataset=finished[0].dataset, folder=str(tmp_path / "run"), log="log.jsonl", train_steps=4, checkpoint_every=2
    )
    log, seen = tmp_path / "run" / "log.jsonl", list[int]()
    end = time.monotonic() + 300

    def look_away(done: int) -> None:
        while done > 0 and len(read_log(log)) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        seen.append(done)

    run_and_kill(config, kill_after=1, on_step=look_away)
    assert len(read_log(log)) == 3 and seen[-1] == 3


def test_too_few_train_steps_are_refused(tmp_path: Path) -> None:
    """There must be room to be killed between checkpoints."""
    with pytest.raises(ConfigError, match="train_steps=5"):
        run(tmp_path, train_steps=5)
