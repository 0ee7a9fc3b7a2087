"""Which rank a process is, from arguments or from the launcher's environment."""

from __future__ import annotations

import pytest

from trajload.errors import ConfigError
from trajload.world import World


def test_world_without_launcher_is_one_process() -> None:
    """No variables: alone."""
    assert World.from_env({}) == World() == World(rank=0, world_size=1)


def test_world_from_env_reads_rank_and_world_size() -> None:
    """What torchrun sets."""
    assert World.from_env({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == World(rank=3, world_size=8)


def test_world_from_env_reads_the_process_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the real environment counts."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert World.from_env() == World(rank=1, world_size=2)


@pytest.mark.parametrize(("have", "lack"), [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
def test_world_from_half_an_environment_is_refused(have: str, lack: str) -> None:
    """One variable without the other would feed ranks the same rows."""
    with pytest.raises(ConfigError, match=f"{have} is set but {lack} is not"):
        World.from_env({have: "1"})


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        ("two", "4", "RANK='two' WORLD_SIZE='4' are not a rank and a world size"),
        ("4", "4", "rank=4 is invalid: expected 0 <= rank < world_size=4"),
        ("", "4", "RANK=''"),
        ("0", "0", "world_size=0 is invalid"),
    ],
)
def test_world_from_a_nonsense_environment_is_refused(rank: str, world_size: str, message: str) -> None:
    """Text and impossible numbers are ConfigErrors that show the variables."""
    with pytest.raises(ConfigError, match=message):
        World.from_env({"RANK": rank, "WORLD_SIZE": world_size})


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (-1, 2, "rank=-1 is invalid"),
        (2, 2, "rank=2 is invalid"),
        (0, 0, "world_size=0 is invalid"),
        (0, -3, "world_size=-3"),
    ],
)
def test_world_of_impossible_numbers_is_refused(rank: int, world_size: int, message: str) -> None:
    """A rank lies inside its world."""
    with pytest.raises(ConfigError, match=message):
        World(rank=rank, world_size=world_size)
