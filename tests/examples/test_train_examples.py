"""The training examples run as a user starts them: losses fall, a killed run goes on, equal runs print equal numbers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trajload.demo import EpisodeLength, generate

REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 900.0
"""Of one process; on an idle machine each takes a few seconds."""

pytestmark = pytest.mark.multiproc


@pytest.fixture(scope="module")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight short episodes of the demo."""
    return generate(tmp_path_factory.mktemp("examples") / "small", num_episodes=8, length=EpisodeLength(30, 40))


class Runs:
    """Starts examples; none outlives the test."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, folder: Path, example: str, *arguments: object) -> subprocess.Popen[str]:
        folder.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, str(REPO / "examples" / example), *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPO)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> str:
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err
        return out

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()


@pytest.fixture
def runs() -> Iterator[Runs]:
    started = Runs()
    yield started
    started.close()


def losses(out: str) -> dict[int, str]:
    """Return the losses of each train_step as they were printed, without the speed, which no two runs share."""
    return {
        int(m[1]): m[2].strip()
        for m in re.finditer(r"^train_step (\d+)  (.*?)(?:  windows/s \d+)?$", out, re.MULTILINE)
    }


def numbers(told: str) -> list[float]:
    return [float(x) for x in re.findall(r"(?:loss|action|picture) (\S+)", told)]


def test_world_model_killed_and_resumed_prints_the_losses_of_a_run_that_was_not(
    runs: Runs, small_dataset: Path, tmp_path: Path
) -> None:
    """SIGKILL between two checkpoints, then --resume: every loss printed is that of the whole run, digit by digit."""
    arguments = (small_dataset, "--steps", 30, "--checkpoint-every", 8, "--log-every", 1)
    whole = runs.start(tmp_path / "whole", "rssm_world_model.py", *arguments)
    # Where this process gets a CPU too late to kill it on the way, it is started anew.
    for attempt in range(10):
        parts = tmp_path / f"parts-{attempt}"
        killed = runs.start(parts, "rssm_world_model.py", *arguments)
        assert killed.stdout is not None and killed.stderr is not None
        before = ""
        while 18 not in losses(
            before
        ):  # checkpoints are after 8 and 16; the second waits for the first to be on the disk
            line = killed.stdout.readline()
            assert line, f"the run ended before train_step 18: {killed.stderr.read()}"
            before += line
        killed.send_signal(signal.SIGKILL)
        before += killed.stdout.read()
        if killed.wait() == -signal.SIGKILL and 30 not in losses(before):
            break
    else:
        pytest.fail("the run came to its end each time before it was killed")

    out = runs.finish(runs.start(parts, "rssm_world_model.py", *arguments, "--resume"))
    resumed_at = re.search(r"^resumed at train_step (\d+)$", out, re.MULTILINE)
    assert resumed_at is not None and int(resumed_at[1]) in (8, 16, 24)
    expected_out = runs.finish(whole)
    expected = losses(expected_out)
    assert list(expected) == list(range(1, 31))
    assert losses(out) == {step: told for step, told in expected.items() if step > int(resumed_at[1])}
    for step, told in losses(before).items():
        assert told == expected[step]
    # What comes after the last step is the same too: weights, and the batch that is imagined.
    assert out.splitlines()[-1] == expected_out.splitlines()[-1]
    first, last = numbers(expected[1])[0], numbers(expected[30])[0]
    assert last < 0.7 * first


def test_policy_learns_and_two_runs_print_the_same(runs: Runs, small_dataset: Path, tmp_path: Path) -> None:
    """The error of actions falls, ensembled chunks are smoother than the newest ones alone, and a run can be repeated."""
    pair = [
        runs.start(tmp_path / folder, "act_policy.py", small_dataset, "--steps", 40, "--log-every", 1)
        for folder in ("one", "two")
    ]
    one, two = map(runs.finish, pair)
    told = losses(one)
    assert told == losses(two) and list(told) == list(range(1, 41))
    action_K = [numbers(text)[1] for text in told.values()]
    assert sum(action_K[-5:]) < 0.9 * sum(action_K[:5])
    jumps = dict(re.findall(r"^episode \d+, (.*): off by \S+, jumps by (\S+)$", one, re.MULTILINE))
    assert 0.0 < float(jumps["ensembled"]) < float(jumps["first of each chunk"])
    assert one.splitlines()[-3:] == two.splitlines()[-3:]


def test_mixture_example_keeps_its_shares_and_learns_both_sources(
    runs: Runs, small_dataset: Path, tmp_path: Path
) -> None:
    """Nine to one before the change, half and half after it, to the row; the loss of each source falls."""
    arguments = (small_dataset, small_dataset, "--steps", 80, "--log-every", 20)
    told = losses(runs.finish(runs.start(tmp_path / "run", "train_mixture.py", *arguments)))
    rows = {step: [int(n) for n in re.findall(r"(\d+) rows", text)] for step, text in told.items()}
    assert rows == {20: [720, 80], 40: [720, 80], 60: [400, 400], 80: [400, 400]}
    first, last = numbers(told[20]), numbers(told[80])
    assert len(first) == 2 and all(b < 0.7 * a for a, b in zip(first, last, strict=True))


def test_tutorial_case_continues_exactly(runs: Runs, tmp_path: Path) -> None:
    """1,664 windows, a checkpoint at update 512, 16 updates made twice: in the same process, and in one that resumes."""
    out = runs.finish(runs.start(tmp_path / "run", "exact_continuation.py", "."))
    assert "1664 windows" in out and "checkpoint at update 512, 16 updates made twice" in out
    assert re.search(
        r"^EQUAL: 16 losses, batches and draws, and \d\d values of the state, to the last bit$", out, re.MULTILINE
    )
