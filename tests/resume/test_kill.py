"""Killed at any moment, on any topology: the stream goes on with exactly the next batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from by_path import load

SCRIPT = Path(__file__).with_name("kill_lives.py")
NUM_KILLS, NUM_STEPS = 50, 1100


def _script():  # type: ignore[no-untyped-def]
    return load(SCRIPT)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.multiproc
def test_stream_through_50_sigkills_on_changing_topologies_is_that_of_one_uninterrupted_run(
    demo_dataset: Path, tmp_path: Path
) -> None:
    """Nothing lost, repeated or changed through 50 kills, with 1, 2 and 4 ranks and 0, 1 and 4 workers in turn."""
    log = tmp_path / "stream.jsonl"
    shm_before = set(os.listdir("/dev/shm"))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(demo_dataset), str(log), str(NUM_KILLS), str(NUM_STEPS)],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["kills"] == NUM_KILLS
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["train_step"] for line in lines] == list(range(len(lines))), "lost or repeated train_steps"
    assert len(lines) > NUM_KILLS

    script = _script()
    with script.make_loader(str(demo_dataset), 0, 1, 0, 1) as oracle:
        # Every batch is checked, against the oracle run plainly in this process.
        changed = [
            line["train_step"]
            for line in lines
            if script.row_digests(oracle.batch_at(line["train_step"])) != line["rows"]
        ]
    assert changed == []
    assert max(len(json.dumps(line["state"])) for line in lines) < 4096
    assert set(os.listdir("/dev/shm")) <= shm_before, "shared memory left behind"
