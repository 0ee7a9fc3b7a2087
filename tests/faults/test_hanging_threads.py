"""A transform that never comes back in a thread: an error that says where it stands, and a loader that can go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupting import interrupt

import trajload as tl
from trajload.errors import StageFailedError

COMMON: dict[str, Any] = {
    **{"window": tl.Window(num_steps=3), "global_batch_size": 4, "seed": 5, "prefetch": 1, "num_epochs": 1},
    **{"streams": {"cam_front": tl.Image(size=(16, 16)), "action": None}, "rank": 0, "world_size": 1},
}


class Stuck:
    """Waits for somebody at the ninth window it meets, that is in the third batch."""

    def __init__(self) -> None:
        self.num_met, self.lock, self.may_go = 0, threading.Lock(), threading.Event()

    def config_json(self) -> dict[str, Any]:
        return {}

    def __call__(self, window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        with self.lock:
            self.num_met += 1
            is_here = self.num_met == 9
        if is_here:
            self.may_go.wait()
        return window


@pytest.mark.parametrize(("order", "device"), [("shuffled", None), ("interleaved", "cpu")])
def test_transform_that_hangs_in_a_thread_ends_the_run_and_tells_where(
    dataset: tl.Dataset, order: str, device: str | None
) -> None:
    """Batches before it are delivered; the error names the train_step and holds the stack; then the run can be taken up again."""
    stuck = Stuck()
    with tl.Loader(
        dataset, order=order, num_workers=2, transforms=[stuck], worker_timeout_s=2.0, device=device, **COMMON
    ) as loader:
        loader.batch_at(0)  # compiles what is not compiled yet
        stuck.num_met = 0
        got = []
        with pytest.raises(
            StageFailedError, match=r"(?s)no progress for 2.0 s.*Raise worker_timeout_s.*in __call__"
        ) as caught:
            for batch in loader:
                got.append(batch.digest())
        assert caught.value.at.train_step == loader.train_step == len(got) == 2
        stuck.may_go.set()
        got += [batch.digest() for batch in loader]
        assert loader.train_step == len(loader)
        assert got == [loader.batch_at(k).digest() for k in range(len(loader))]


SCRIPT = """
import sys, threading
import trajload as tl
is_there = threading.Event()
def stuck(window, generator):
    is_there.set()
    threading.Event().wait()
arguments = {"window": tl.Window(num_steps=3), "global_batch_size": 4, "streams": ["action"], "rank": 0, "world_size": 1}
loader = tl.Loader(sys.argv[1], transforms=[stuck], num_workers=2, **arguments)
threading.Thread(target=lambda: (is_there.wait(), print("hangs", flush=True)), daemon=True).start()
next(iter(loader))
"""


@pytest.mark.multiproc
def test_ctrl_c_ends_a_script_whose_transform_hangs(tmp_path: Path, demo_dataset: Path) -> None:
    """It is not waited for until its minute is over: the script ends while the test still has its patience."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {"PYTHONPATH": str(Path(tl.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        [sys.executable, script, demo_dataset],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "hangs\n"
    _, stderr, _ = interrupt(process, lambda: process.send_signal(signal.SIGINT))
    assert process.returncode == -signal.SIGINT
    assert stderr.count("KeyboardInterrupt") >= 1
