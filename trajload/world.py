"""Which data-parallel rank this process is. `World.from_env` is the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from trajload.arguments import explains_calls
from trajload.errors import ConfigError

__all__ = ["World"]


@explains_calls
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
                if isinstance(value, bool):
                    raise TypeError
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

    @classmethod
    def from_mesh(cls, mesh: Any, dim: str | int | None = None) -> World:
        """Return the World of one dimension of a torch `DeviceMesh`: this process's place along it, and its size.

        Args:
            mesh: The device mesh, or the part of it that is data-parallel, such as `mesh["dp"]`.
            dim: Name or number of the data-parallel dimension; not needed where the mesh has one dimension only.

        Raises:
            ConfigError: No mesh, no such dimension, or several dimensions and none chosen.
        """
        if not hasattr(mesh, "get_local_rank") or not hasattr(mesh, "size"):
            raise ConfigError(f"device_mesh={mesh!r} is unusable: expected a torch DeviceMesh.")
        names = tuple(mesh.mesh_dim_names or ())
        if dim is None and mesh.ndim != 1:
            have = ", ".join(map(repr, names)) or f"numbers 0 to {mesh.ndim - 1}"
            raise ConfigError(
                f"the device mesh has {mesh.ndim} dimensions ({have}): say which one is data-parallel, for instance "
                "mesh['dp'], or join several by mesh['dp_replicate', 'dp_shard']._flatten()."
            )
        number = names.index(dim) if dim in names else 0 if dim is None else dim
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < mesh.ndim:
            raise ConfigError(
                f"dimension {dim!r} is unknown: the device mesh has {', '.join(map(repr, names)) or 'no names'}."
            )
        return cls(rank=mesh.get_local_rank(number), world_size=mesh.size(number))
