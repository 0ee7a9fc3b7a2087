"""A rebalancing killed at any moment leaves no dataset or a whole one, and the same call finishes it to the byte."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from killing import kill_at_every_call

import trajload as tl
from trajload.convert.rebalance import rebalance
from trajload.convert.rewrite import PLAN_NAME
from trajload.shards.verify import verify
from trajload.sources.native import open_native
from trajload.spec import StreamSpec
from trajload.types import Modality

REBALANCE = """
from trajload.convert.rebalance import rebalance

def work(folder, arm, source):
    arm()
    rebalance(source, folder, num_shards=3, by="steps", measure=False)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine episodes of one signal, of different lengths, in one shard."""
    folder = tmp_path_factory.mktemp("source") / "data"
    spec = StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(3,), dtype="float32")
    with tl.Writer(folder, streams=[spec], step_rate_hz=30) as writer:
        for e in range(9):
            writer.add_episode({"state": np.full((10 + 7 * e, 3), e, np.float32)})
    return folder


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of the rebalancing that nobody killed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    rebalance(source, out, num_shards=3, by="steps", measure=False)
    return files(out)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.multiproc
def test_killed_at_every_fsync_and_rename_it_is_finished_by_the_same_call(
    source: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    """Before: no dataset, or a perfect one. After the next run: the files of a run that was never killed, and no others."""
    runs = kill_at_every_call(REBALANCE, tmp_path, str(source), timeout_s=900)
    assert len(runs) >= 30 and runs[-1][1] == 0
    assert all(status == -signal.SIGKILL for _, status in runs[:-1])
    kept, outcomes = [], []
    for folder, _ in runs:
        is_there = (folder / "manifest.json").exists()
        outcomes.append(is_there)
        if is_there:
            assert verify(folder).ok
            opened = open_native(folder)
            assert opened.num_episodes == 9
            opened.close()
        report = rebalance(source, folder, num_shards=3, by="steps", measure=False)
        kept.append(report.num_shards_kept)
        assert files(folder) == whole
    assert outcomes == sorted(outcomes), "once there, it stays"
    assert outcomes.count(False) >= 25 and outcomes.count(True) >= 2
    assert kept == sorted(kept) and set(kept) == {0, 1, 2, 3}, "finished shards are not written again"


@pytest.mark.multiproc
def test_killed_from_outside_in_the_middle_of_a_shard_it_is_finished(
    source: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    """SIGKILL between two episodes: unfinished files and the plan are left, the lock is not."""
    code = """
import sys, time
from trajload.convert import rebalance as module
real, left = module.stored_record, 5
def until_killed(*arguments):
    global left
    left -= 1
    if left == 0:
        print("here", flush=True)
        time.sleep(1e6)
    return real(*arguments)
module.stored_record = until_killed
module.rebalance(sys.argv[1], sys.argv[2], num_shards=3, by="steps", measure=False)
"""
    out = tmp_path / "out"
    command = [sys.executable, "-c", code, str(source), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "here\n"
        process.kill()
    assert (out / PLAN_NAME).exists() and not (out / "manifest.json").exists()
    assert list(out.rglob("*.tar.tmp"))
    assert not verify(out).ok
    assert rebalance(source, out, num_shards=3, by="steps", measure=False).num_shards_kept >= 1
    assert files(out) == whole
