"""The argument `workers`: what it takes, what it refuses, and what worker processes do without."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.errors import ConfigError
from trajload.pipeline.worker_main import part_of
from trajload.pipeline.worker_process import _takes_no_signal
from trajload.pipeline.workers import WorkerChoice, check_timeout


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("threads", ("threads", 0)),
        ("auto", ("auto", 0)),
        ("processes:1", ("processes", 1)),
        ("processes:12", ("processes", 12)),
    ],
)
def test_workers_are_parsed(given: str, expected: tuple[str, int]) -> None:
    """The three forms."""
    choice = WorkerChoice.parse(given)
    assert (choice.kind, choice.num_processes) == expected


@pytest.mark.parametrize("given", ["processes", "processes:0", "processes:-1", "processes:2 ", "fork", "", 2, None])
def test_other_workers_are_refused(given: Any) -> None:
    """The message lists what can be given."""
    with pytest.raises(ConfigError, match="expected 'threads', 'processes:N' with N of at least 1, or 'auto'"):
        WorkerChoice.parse(given)


@pytest.mark.parametrize("given", [0, -1, True, "300", float("nan")])
def test_unusable_timeouts_are_refused(given: Any) -> None:
    """Seconds above 0, or None."""
    with pytest.raises(ConfigError, match=r"worker_timeout_s=.*expected seconds above 0"):
        check_timeout(given)


def test_processes_without_decoder_threads_are_refused(demo_dataset: Path) -> None:
    """num_workers=0 means the calling thread, which no process has."""
    with pytest.raises(ConfigError, match="with num_workers=0: expected at least one decoder thread"):
        tl.Loader(
            demo_dataset,
            window=tl.Window(num_steps=2),
            global_batch_size=2,
            workers="processes:2",
            num_workers=0,
            rank=0,
            world_size=1,
        )


@pytest.mark.parametrize(("num_rows", "num_parts"), [(7, 3), (6, 6), (2, 5), (0, 2)])
def test_parts_cover_the_rows_in_order(num_rows: int, num_parts: int) -> None:
    """Contiguous, disjoint, in order; some are empty where a batch has fewer rows than parts."""
    rows = slice(10, 10 + num_rows)
    parts = [part_of(rows, i, num_parts) for i in range(num_parts)]
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(10, 10 + num_rows))


@pytest.mark.multiproc
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_stopped_process_is_told_from_one_that_needs_a_cpu() -> None:
    """The first writes no stacks however long one waits; the second does as soon as it runs."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            assert not _takes_no_signal(process.pid)
            process.send_signal(signal.SIGSTOP)
            end = time.monotonic() + 60
            while not _takes_no_signal(process.pid) and time.monotonic() < end:
                time.sleep(0.005)
            assert _takes_no_signal(process.pid)
        finally:
            process.kill()
    assert not _takes_no_signal(process.pid), "nothing is known of one that is gone"


@pytest.mark.multiproc
def test_worker_process_loads_no_torch() -> None:
    """It would take a second or two to start, and a hundred megabytes, each."""
    code = "import sys, trajload.pipeline.worker_main; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert out.stdout.strip() == "False"
