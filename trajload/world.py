"""Which data-parallel rank this process is. `World.from_env` is the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index

from trajload.errors import ConfigError

__all__ = ["World"]


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The data-parallel rank of this process and their number.

    Model-parallel processes of one data-parallel rank are given the same `rank` and get the same windows.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        for name, value in (("rank", self.rank), ("world_size", self.world_size)):
            try:
                object.__setattr__(self, name, index(value))  # any kind of int, NumPy's too
            except TypeError:
                raise ConfigError(f"{name}={value!r} is invalid: expected an int.") from None
        if self.world_size < 1:
            raise ConfigError(f"world_size={self.world_size!r} is invalid: expected at least 1.")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank={self.rank!r} is invalid: expected 0 <= rank < world_size={self.world_size}.")

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> World:
        """Return the World that launchers (torchrun, SLURM wrappers) describe in RANK and WORLD_SIZE.

        Without both variables the process is alone. Setting one without the other is an error, since
        guessing would feed ranks the same rows.
        """
        env = os.environ if env is None else env
        rank, world_size = env.get("RANK"), env.get("WORLD_SIZE")
        if rank is None and world_size is None:
            return cls()
        if rank is None or world_size is None:
            have, lack = ("WORLD_SIZE", "RANK") if rank is None else ("RANK", "WORLD_SIZE")
            raise ConfigError(
                f"{have} is set but {lack} is not. Set both, or pass rank= and world_size= to the Loader."
            )
        try:
            return cls(rank=int(rank), world_size=int(world_size))
        except ValueError as err:
            raise ConfigError(
                f"RANK={rank!r} WORLD_SIZE={world_size!r} are not a rank and a world size: {err}"
            ) from err
