"""Which rows of a global batch a rank loads. Never changes what the global batch holds."""

from __future__ import annotations

import operator

from trajload.errors import ConfigError
from trajload.world import World

__all__ = ["rank_rows"]


def rank_rows(global_batch_size: int, world: World) -> slice:
    """Return the contiguous rows of every global batch that `world.rank` owns.

    Even in count: the first `global_batch_size % world_size` ranks get one row more. Ranks are disjoint, in order
    and cover the batch.

    Raises:
        ConfigError: Fewer rows than ranks, since a rank without rows would have nothing to train on.
    """
    try:
        num_rows = operator.index(global_batch_size)
    except TypeError:
        raise ConfigError(
            f"global_batch_size={global_batch_size!r} is invalid: expected an int of at least 1."
        ) from None
    if num_rows < world.world_size:
        raise ConfigError(
            f"global_batch_size={num_rows} is too small for world_size={world.world_size}: "
            f"expected at least one row for each rank. Raise global_batch_size or use fewer data-parallel ranks."
        )
    size, num_longer = divmod(num_rows, world.world_size)
    start = world.rank * size + min(world.rank, num_longer)
    return slice(start, start + size + (world.rank < num_longer))
