"""A Writer killed at any moment leaves the old dataset or the new one, and the next Writer cleans up."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from killing import kill_at_every_call

from trajload.errors import ManifestError
from trajload.shards.verify import verify
from trajload.shards.writer import Writer
from trajload.sources.native import open_native
from trajload.spec import StreamSpec
from trajload.types import Modality

STATE = StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(3,), dtype="float32")

WRITE = """
import shutil
import numpy as np
from trajload.shards.writer import Writer
from trajload.spec import StreamSpec
from trajload.types import Modality

def work(folder, arm, template):
    spec = StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(3,), dtype="float32")
    if template:
        shutil.copytree(template, folder)
    arm()
    streams = None if template else [spec]
    rate = None if template else 30
    with Writer(folder, streams=streams, step_rate_hz=rate, shard_bytes=10_000, append=bool(template)) as writer:
        for i in range(6):
            writer.add_episode({"state": np.full((10, 3), i, np.float32)}, key=f"new-{i}")
"""


def kill_everywhere(root: Path, template: Path | None) -> list[tuple[Path, int]]:
    """Return each folder a Writer was killed in, and its exit status; the last one finished."""
    return kill_at_every_call(WRITE, root, str(template or ""), timeout_s=600)


@pytest.mark.multiproc
def test_a_new_dataset_is_whole_or_not_there(tmp_path: Path) -> None:
    """Killed at each fsync and rename of its first dataset, a Writer leaves no manifest or a perfect dataset."""
    runs = kill_everywhere(tmp_path, None)
    assert len(runs) >= 18 and runs[-1][1] == 0
    assert all(status == -signal.SIGKILL for _, status in runs[:-1])
    outcomes = []
    for folder, _ in runs:
        report = verify(folder)
        if (folder / "manifest.json").exists():
            assert report.ok and not report.problems, report.problems
            assert open_native(folder).num_episodes == 6
            outcomes.append("new")
        else:
            assert not report.ok and report.problems[0].kind == "manifest"
            assert "never finished" in report.problems[0].message
            with pytest.raises(ManifestError, match="never finished"):
                open_native(folder)
            outcomes.append("none")
    assert outcomes.index("new") == outcomes.count("none"), "once there, it stays"
    assert outcomes.count("none") >= 15 and outcomes.count("new") >= 2


@pytest.mark.multiproc
def test_an_appended_dataset_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    """Killed at each fsync and rename while appending, a Writer leaves a dataset that verifies, old or new."""
    template = tmp_path / "template"
    with Writer(template, streams=[STATE], step_rate_hz=30, name="d") as writer:
        writer.add_episode({"state": np.zeros((4, 3), np.float32)}, key="old")
    old = open_native(template).digest
    runs = kill_everywhere(tmp_path, template)
    counts = []
    new_digests = set()
    for folder, _ in runs:
        report = verify(folder)
        assert report.ok, report.problems
        assert all(problem.kind == "leftover" and problem.severity == "warning" for problem in report.problems)
        dataset = open_native(folder)
        assert dataset.stats()["state"]["count"] == dataset.num_steps
        counts.append(dataset.num_episodes)
        if dataset.num_episodes == 1:
            assert dataset.digest == old
        else:
            new_digests.add(dataset.digest)
    assert set(counts) == {1, 7} and counts == sorted(counts)
    assert len(new_digests) == 1, "the new dataset does not depend on the moment of death"


@pytest.mark.multiproc
def test_the_next_writer_goes_on_after_a_kill(tmp_path: Path) -> None:
    """Whatever was left, another Writer finishes a dataset that verifies, and removes unfinished files."""
    num_with_leftovers = 0
    for folder, _ in kill_everywhere(tmp_path, None)[:-1]:
        num_with_leftovers += bool(list(folder.rglob("*.tmp")))
        again = (folder / "manifest.json").exists()
        with Writer(folder, streams=[STATE], step_rate_hz=30, append=again) as writer:
            writer.add_episode({"state": np.ones((4, 3), np.float32)}, key="again")
        report = verify(folder)
        assert report.ok
        assert not list(folder.rglob("*.tmp"))
        assert open_native(folder).num_episodes == (7 if again else 1)
    assert num_with_leftovers >= 10


@pytest.mark.multiproc
def test_a_writer_killed_from_outside_leaves_the_folder_free(tmp_path: Path) -> None:
    """SIGKILL in the middle of an episode's bytes: the lock dies with the process, verify names what is left."""
    code = """
import sys
import numpy as np
from trajload.shards.writer import Writer
from trajload.spec import StreamSpec
from trajload.types import Modality
spec = StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(3,), dtype="float32")
writer = Writer(sys.argv[1], streams=[spec], step_rate_hz=30, shard_bytes=50_000)
for i in range(10**9):
    writer.add_episode({"state": np.ones((100, 3), np.float32)})
    if i == 200:
        print("going", flush=True)
"""
    folder = tmp_path / "d"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "going\n"
        process.kill()
    report = verify(folder)
    kinds = [problem.kind for problem in report.problems]
    assert kinds[0] == "manifest" and kinds.count("leftover") >= 20
    with Writer(folder, streams=[STATE], step_rate_hz=30) as writer:
        writer.add_episode({"state": np.ones((4, 3), np.float32)})
    assert verify(folder).problems == []
