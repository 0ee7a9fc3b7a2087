"""The runner's promises: nobody is silently absent, nothing is left running, the clock is read right."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def test_every_rival_has_a_module_a_note_and_a_known_format(benchmarks_on_path: Path) -> None:
    """A newcomer finds each loader's code and what is unfair about it from the table alone."""
    from rivals.table import RIVALS, baseline
    from workloads.formats import format_path
    from workloads.spec import WORKLOADS

    for name, rival in RIVALS.items():
        assert rival.name == name and rival.notes and rival.packages
        assert importlib.util.find_spec(f"rivals.{rival.module}") is not None
        assert set(rival.unfit) <= set(WORKLOADS)
        for workload in WORKLOADS.values():
            assert workload.name not in RIVALS[baseline(workload)].unfit
            assert format_path(rival.format, workload, Path("d")).parent == workload.data.root(Path("d"))


def arguments(**more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"data": Path("absent"), "seconds": 1.0, "repeats": 2, "workers": 2, "loader": [], "logs": None, **more}
    )


def test_rivals_that_cannot_be_measured_keep_their_reason() -> None:
    """Not installed, not applicable, failing the check, failing a repeat: each is told apart."""
    from compare import Runner
    from rivals.table import Rival
    from workloads.spec import WORKLOADS

    class Scripted(Runner):
        """Answers for the child processes."""

        def step(self, action: str, rival: Rival, timeout: float) -> dict[str, Any]:
            if rival.name == "wrong" and action == "check":
                return {"error": "WrongBatchError: got frame (0, 1)"}
            return {"stored_bytes": 7} if action == "prepare" else {}

    def rival(name: str, package: str = "numpy", **more: Any) -> Rival:
        return Rival(name=name, module="in_memory", packages=(package,), format="raw", notes="n", **more)

    runner = Scripted(WORKLOADS["state"], arguments())
    for each in (rival("good"), rival("gone", "no-such-package"), rival("odd", unfit={"state": "why"}), rival("wrong")):
        runner.admit(each)
    told = {name: (entry["status"], entry.get("reason")) for name, entry in runner.entries.items()}
    assert told == {
        "good": ("ready", None),
        "gone": ("not installed", "missing: no-such-package"),
        "odd": ("not applicable", "why"),
        "wrong": ("check failed", "WrongBatchError: got frame (0, 1)"),
    }


def test_rate_and_gaps_are_taken_after_the_warm_up() -> None:
    """The slow first batches count for the first-batch time and not for the rate; a long gap later does."""
    from measure_one import WARM_UP_BATCHES, time_batches

    took = [5.0, *[1.0] * (WARM_UP_BATCHES - 1), *[0.25] * 10, 1.5, *[0.25] * 100]
    now = itertools.accumulate(took)
    figures = time_batches(itertools.count(), seconds=4.0, batch_size=8, clock=lambda: next(now))
    assert figures["first_batch_at"] == 5.0
    assert (figures["batches"], figures["longest_gap_s"], figures["median_gap_s"]) == (11, 1.5, 0.25)
    assert figures["windows_per_s"] == 11 * 8 / (10 * 0.25 + 1.5)


def test_warm_up_lasts_a_fifth_of_the_time() -> None:
    """What a loader had ready before anyone asked is used up first, however fast its batches come."""
    from measure_one import time_batches

    now = itertools.accumulate([1.0, *[0.01] * 200, *[0.1] * 200])
    figures = time_batches(itertools.count(), seconds=10.0, batch_size=1, clock=lambda: next(now))
    assert figures["longest_gap_s"] == pytest.approx(0.1)
    assert figures["median_gap_s"] == pytest.approx(0.1)


@pytest.mark.multiproc
def test_session_is_ended_with_all_its_processes() -> None:
    """Some loaders' workers outlive their parent; none may disturb the next measurement."""
    from processes import end_session

    grandchild = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", grandchild],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        pid = int(child.stdout.readline())  # type: ignore[union-attr]
        end_session(child.pid)
    stat = Path(f"/proc/{pid}/stat")
    state = stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "gone"
    assert state in ("gone", "Z")


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("code", "timeout", "error"),
    [
        ("import os; os._exit(3)", 60.0, "the process ended with 3 and wrote no result"),
        ("import sys, threading; threading.Event().wait()", 1.0, "no result within 1 s"),
    ],
    ids=["crash", "hang"],
)
def test_child_without_a_result_says_why(
    code: str, timeout: float, error: str, tmp_path: Path, benchmarks_on_path: Path
) -> None:
    """A crash and a hang are results: they are listed with the reason."""
    from processes import run_child

    script = tmp_path / "script.py"
    script.write_text(code)
    assert run_child(os.path.relpath(script, benchmarks_on_path), timeout=timeout) == {"error": error}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pool_bytes=5000", ("pool_bytes", 5000)),
        ("workers=processes:{n}", ("workers", "processes:{n}")),
        ("prefetch='auto'", ("prefetch", "auto")),
        ("num_epochs=None", ("num_epochs", None)),
    ],
)
def test_loader_arguments_are_literals_or_text(text: str, expected: tuple[str, Any]) -> None:
    """`--loader key=value` reaches the Loader with the type its author meant."""
    from compare import loader_argument

    assert loader_argument(text) == expected
    assert json.loads(json.dumps(dict([expected]))) == dict([expected])


@pytest.mark.parametrize("text", ["pool_bytes", "=5", "a-b=1"])
def test_loader_argument_without_a_name_is_refused(text: str) -> None:
    """A typing slip ends at the command line, not in every child process."""
    from compare import loader_argument

    with pytest.raises(argparse.ArgumentTypeError, match="not of the form key=value"):
        loader_argument(text)
