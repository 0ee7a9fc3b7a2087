"""The main job on recorded robot data, in place: open, iterate, checkpoint, be killed, resume at exactly the next batch."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from by_path import load

import trajload as tl

SCRIPT = Path(__file__).parents[1] / "resume" / "kill_lives.py"
FOLDERS = [
    "lerobot_v2/gr00t_robot_sim_pickplace",
    "lerobot_v2/g1_unitree_inspire_av1",
    "lerobot_v2/starvla_sim_pick_place",
    "lerobot_v3/made_by_lerobot",
    "lerobot_v3/reachy2_apple_storage_novideo",
]
COMMON = {"window": tl.Window(num_steps=8, pad="edge"), "global_batch_size": 4, "seed": 2, "rank": 0, "world_size": 1}


@pytest.mark.real_data
@pytest.mark.parametrize("folder", FOLDERS)
def test_recorded_robot_data_resumes_at_exactly_the_next_batch(real_data: Path, tmp_path: Path, folder: str) -> None:
    """Every stream of every folder: iteration equals the oracle, and so does what follows a restored state."""
    dataset = tl.open(real_data / folder, missing="skip", cache_dir=tmp_path)
    with tl.Loader(dataset, num_workers=2, **COMMON) as loader:
        first = {}
        for batch in itertools.islice(loader, 3):
            first[batch.train_step] = batch.digest()
            state = json.dumps(loader.state_dict())
        assert len(state) < 4096
        assert first == {k: loader.batch_at(k).digest() for k in range(3)}
        later = loader.batch_at(3).digest()
    again = tl.open(real_data / folder, missing="skip", cache_dir=tmp_path)
    with tl.Loader(again, num_workers=1, **COMMON) as loader:
        loader.load_state_dict(json.loads(state))
        batch = next(iter(loader))
    assert (batch.train_step, batch.digest()) == (3, later)


@pytest.mark.real_data
@pytest.mark.slow
@pytest.mark.multiproc
def test_recorded_robot_data_through_sigkills_gives_the_uninterrupted_stream(real_data: Path, tmp_path: Path) -> None:
    """A LeRobot v3 folder read in place, killed eight times on changing ranks and workers: nothing lost or changed."""
    dataset, log, num_steps = real_data / "lerobot_v3/made_by_lerobot", tmp_path / "stream.jsonl", 60
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(dataset), str(log), "8", str(num_steps)],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["kills"] == 8
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["train_step"] for line in lines] == list(range(len(lines)))
    script = load(SCRIPT)
    with script.make_loader(str(dataset), 0, 1, 0, 1) as oracle:
        changed = [k for k, line in enumerate(lines) if script.row_digests(oracle.batch_at(k)) != line["rows"]]
    assert changed == []
