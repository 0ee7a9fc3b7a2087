"""Ranks that differ are named before they train; ranks that are alike are left alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.errors import ConfigError
from trajload.pipeline.ranks import compare_facts


@pytest.fixture(scope="module")
def answers(demo_dataset: Path, environment: dict[str, str]) -> dict[str, list[str]]:
    """What each rank of each scenario got, see ranks.py."""
    command = [sys.executable, str(Path(__file__).with_name("ranks.py")), str(demo_dataset)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("alike", ["ok", "ok", "ok"]),
        ("slow_rank", ["ok", "ok", "ok"]),
        ("alone_in_one_process", ["ok", "elsewhere", "elsewhere"]),
    ],
)
def test_ranks_that_are_alike_go_on(answers: dict[str, list[str]], scenario: str, expected: list[str]) -> None:
    """Equal ranks, one that is slow, and a process that evaluates alone meet no error."""
    assert answers[scenario] == expected


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("scenario", "pattern"),
    [
        ("other_seed", r"ConfigError: ranks would load different batches\. Differing:\n(  - .*\n)*  - config\.seed: rank 1 has 8, ranks 0, 2 have 7\n"),
        ("other_seed", r"  - config\.global_batch_size: rank 1 has 9, ranks 0, 2 have 12\n"),
        ("other_cursor", r"cursor\.train_step: rank 2 has 0, ranks 0, 1 have 1\n.*load the same state"),
        ("other_data", r"config\.episodes: rank 0 has .*, ranks 1, 2 have absent"),
        ("twice_the_same_rank", r"data-parallel rank 2 of world_size=3 belongs to no process: the others hold 0 \(process 0\), 1"),
        ("ranks_of_nobody", r"the environment says rank 0 of 1, torch\.distributed rank \d of 3: processes would load the same rows"),
    ],
)  # fmt: skip
def test_ranks_that_differ_are_named(answers: dict[str, list[str]], scenario: str, pattern: str) -> None:
    """Every rank gets the same words: who differs, in which field, what to do."""
    for said in answers[scenario]:
        assert re.search(pattern, said), said


@pytest.mark.multiproc
def test_rank_that_never_comes_is_an_error_and_no_hang(answers: dict[str, list[str]]) -> None:
    """Those that wait say for whom, and how to do without."""
    *waited, elsewhere = answers["absent_rank"]
    assert elsewhere == "elsewhere"
    for said in waited:
        assert re.search(r"StageFailedError: rank 2 did not come to check_ranks within 1\.5 s.*check_ranks=False", said)


@pytest.mark.multiproc
def test_mesh_gives_the_ranks_of_its_data_parallel_dimension(answers: dict[str, list[str]]) -> None:
    """And one of several dimensions has to be chosen."""
    for said in answers["mesh"]:
        assert re.search(r"the device mesh has 2 dimensions \('dp', 'tp'\): say which one is data-parallel", said)


@pytest.mark.multiproc
def test_dataloader_with_workers_checks_too(answers: dict[str, list[str]]) -> None:
    """Before a worker is started; of two that differ, the first is taken as the measure."""
    for said in answers["workers"]:
        assert "config.seed: rank 1 has 8, rank 0 has 7" in said


def test_check_without_torch_distributed_says_what_is_missing(make_loader: Any) -> None:
    """The call is explicit, so it does not pass silently."""
    with (
        make_loader() as loader,
        pytest.raises(ConfigError, match=r"not initialised: call torch\.distributed\.init_process_"),
    ):
        loader.check_ranks()


def test_fields_that_agree_but_for_the_digest_are_told_apart() -> None:
    """Long values stand in states as digests: the digest of the whole then is what differs."""
    fact = {"rank": 0, "world_size": 2, "config": {"order": "x"}, "config_digest": "aa"}
    with pytest.raises(ConfigError, match=r"config_digest: rank 1 has 'bb', rank 0 has 'aa'"):
        compare_facts({0: fact, 1: {**fact, "rank": 1, "config_digest": "bb"}})
    compare_facts({0: fact, 1: {**fact, "rank": 1}})


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"device_mesh": "dp"}, r"device_mesh='dp' is unusable: expected a torch DeviceMesh"),
        ({"device_mesh": object(), "rank": 0, "world_size": 1}, r"device_mesh and rank= both say which rank this is"),
    ],
)
def test_unusable_mesh_is_refused(demo_dataset: Path, options: dict[str, Any], pattern: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigError, match=pattern):
        tl.Loader(demo_dataset, window=tl.Window(num_steps=2), global_batch_size=4, **options)


_LEAVES = """
import os, sys, time
import torch.distributed as dist
from trajload.pipeline import ranks

rank, port = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
if rank == 0:
    time.sleep(0.5)  # so that rank 1 looks in vain, and again only when rank 0 would be gone
else:
    ranks._POLL_S = (1.5, 1.5)
print(len(ranks._exchange({}, None, 60.0)), flush=True)
os._exit(0)
"""


@pytest.mark.multiproc
def test_rank_that_holds_the_store_stays_until_all_have_read_it(tmp_path: Path, environment: dict[str, str]) -> None:
    """A job that is over on rank 0 before rank 1 looks again does not end rank 1 with a lost connection."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (script := tmp_path / "leaves.py").write_text(_LEAVES)
    runs = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    said = [run.communicate(timeout=300) for run in runs]
    assert [out.strip() for out, _ in said] == ["2", "2"], said
