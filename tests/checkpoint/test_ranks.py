"""Several ranks save and resume together; whoever dies, and wherever, nothing is half committed and nobody hangs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from damaging import flip

from trajload.checkpoint.store import Store

pytestmark = pytest.mark.multiproc

DEATHS = [
    *(
        (2, 0, where)
        for where in (
            "begun",
            "part made",
            "files written",
            "part finished",
            "voting",
            "committing",
            "committed",
            "told",
        )
    ),
    *((2, 1, where) for where in ("begun", "part made", "files written", "part finished", "voting", "told")),
    *((4, 0, where) for where in ("begun", "committing")),
    *((4, 3, where) for where in ("part made", "voting")),
]
"""All of two ranks, and four of four; `scripts/crash-tests --only ranks` kills each of 2 and 4 ranks everywhere, in both modes."""


def mode_at(where: str) -> str:
    return "async" if where in ("files written", "voting") else "sync"


@pytest.fixture(scope="module")
def deaths(
    jobs_in: Callable[[Path], Any], rank_kills: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> dict[Any, Any]:
    """For each death the job, its folder and what its ranks told: three jobs at a time, which mostly wait."""
    deaths = tmp_path_factory.mktemp("deaths")

    def die(world: int, victim: int, where: str) -> tuple[Any, Path, Any]:
        folder = deaths / f"{world} {victim} {where}"
        folder.mkdir()
        jobs = jobs_in(folder)
        return jobs, folder, rank_kills.die(jobs, world, victim, where, mode_at(where))

    with ThreadPoolExecutor(3) as pool:
        return {death: pool.submit(die, *death) for death in DEATHS}


@pytest.mark.alone
@pytest.mark.parametrize(("world", "victim", "where"), DEATHS)
def test_rank_killed_while_saving_leaves_whole_commits_only_and_survivors_raise_in_time(
    deaths: dict[Any, Any], rank_kills: ModuleType, world: int, victim: int, where: str
) -> None:
    """At each step of the protocol; then a new job goes on from the newest commit with the next number."""
    jobs, folder, told = deaths[world, victim, where].result()
    assert rank_kills.what_is_wrong(jobs, told, folder / "store", world, victim, where, mode_at(where)) == []


def test_every_step_of_the_protocol_is_killed(rank_kills: ModuleType) -> None:
    """The short list holds every step of two ranks; the full one every rank of four, in both modes."""
    assert {(2, victim, where) for _, victim, where, _ in rank_kills.all_kills(2)} <= set(DEATHS)
    assert len(rank_kills.all_kills(2, 4)) == 2 * (8 + 6) + 2 * (8 + 3 * 6)


def test_ranks_resume_their_own_streams_and_the_common_weights(jobs: Any) -> None:
    """Each rank draws what it would have drawn; weights were written once and are the same on all."""
    rows = jobs.run("train", 2, 2)
    assert rows[0][-1]["draws"] != rows[1][-1]["draws"]
    told = jobs.run("go_on", 2)
    for rank in range(2):
        assert told[rank]["step"] == 2 and told[rank]["draws"] == rows[rank][-1]["draws"]
        assert told[rank]["weights"] == rows[0][-1]["weights"]


def test_replicated_state_is_written_once(jobs: Any, tmp_path: Path) -> None:
    """Rank 1 has its streams and nothing else."""
    jobs.run("train", 2, 1)
    store = Store(tmp_path / "store", create=False)
    [commit] = store.commits()
    assert set(store.part(commit, 1).files) == {"rng.json", "rng.safetensors"}
    assert {"model.safetensors", "optim.json"} < set(store.part(commit, 0).files)


def test_run_goes_on_with_other_numbers_of_ranks(jobs: Any) -> None:
    """1, then 2, then 3 ranks: weights are those that were saved; ranks without saved streams are told."""
    [first] = jobs.run("train", 1, 2)
    for step, world, saved in ((3, 2, 1), (4, 3, 2)):
        told = jobs.run("go_on", world, step)
        assert {answer["weights"] for answer in told} == {first[-1]["weights"]}
        assert f"rank {world - 1} has no random streams in a checkpoint of {saved} ranks" in told[-1]["diffs"][0]
        assert f"ranks: saved with {saved}, here {world}" in told[0]["diffs"]


def test_damage_in_one_part_steps_all_ranks_back_together(jobs: Any, tmp_path: Path) -> None:
    """The part of rank 1 is damaged: both ranks take the commit before, and say from which they fell back."""
    rows = jobs.run("train", 2, 3)
    [file] = (tmp_path / "store").glob("gen/*-s000000003-*/r00001/rng.safetensors")
    flip(file, -1)
    told = jobs.run("go_on", 2)
    assert [(answer["step"], answer["fell_back"]) for answer in told] == [(2, [3])] * 2
    assert [answer["draws"] for answer in told] == [rows[rank][1]["draws"] for rank in range(2)]


def test_ranks_at_different_steps_raise_before_a_byte_is_written(jobs: Any) -> None:
    """Rank and field are named, on every rank."""
    for answer in jobs.run("differ", 2):
        assert answer["raised"].startswith("CheckpointMismatchError: ranks are not at the same point")
        assert "step: rank 1 has 8, rank 0 has 7" in answer["raised"]
        assert answer["generations"] == 0


def test_state_of_each_rank_comes_back_and_another_number_of_ranks_is_refused(jobs: Any) -> None:
    """What a rank keeps for itself belongs to no other; one rank cannot take the state of two."""
    jobs.run("keep_own", 2)
    assert [answer["own"] for answer in jobs.run("keep_own", 2)] == [[1.0, 1.0], [2.0, 2.0]]
    [alone] = jobs.run("keep_own", 1)
    assert alone["raised"].startswith("CheckpointMismatchError: ") and "each of 2 ranks (own): got 1" in alone["raised"]


def test_clock_of_rank_0_decides_for_all(jobs: Any) -> None:
    """Ranks whose own clocks say otherwise save at the same steps."""
    assert jobs.run("due", 2) == [[3, 6], [3, 6]]


def test_what_one_rank_alone_refuses_ends_all_ranks_and_changes_none(jobs: Any, demo_dataset: Path) -> None:
    """A tag that only one rank's data has, or one rank does not allow, and a hook that fails, or stands, on one: nobody waits."""
    told = jobs.run("one_rank_differs", 2, str(demo_dataset))
    assert not any(answer["late"] for rank in range(2) for answer in told[rank])
    answers = [{answer["what"]: answer for answer in told[rank]} for rank in range(2)]
    for rank in range(2):
        raised = {what: answer["raised"] for what, answer in answers[rank].items()}
        refused = raised["tag of the data"]
        assert refused.startswith("CheckpointMismatchError: ranks are not at the same point, so nothing of step 3 was")
        assert ".consent_tags: rank 1 has ['faces', 'research'], rank 0 has ['research']" in refused
        assert raised["save"] == raised["in the end"] == "" and answers[rank]["in the end"]["updates"] == 1
        for odd in range(2):
            for what in (f"tag refused by {odd}", f"tags asked for by {odd}"):
                assert raised[what].startswith("CheckpointMismatchError: ") and "is tagged ['faces']" in raised[what]
                assert (f"failed on other ranks: rank {odd}: " in raised[what]) == (rank != odd)
                assert answers[rank][what]["updates"] == 0  # none has changed anything
            others = f"CheckpointError: after_resume failed on other ranks: rank {odd}: ConnectionError: no engine"
            assert raised[f"hook of {odd}"] == ("ConnectionError: no engine" if rank == odd else others)
            assert answers[rank][f"hook of {odd}"]["updates"] == 1
