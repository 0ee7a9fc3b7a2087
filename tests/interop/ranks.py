"""Processes that check each other: forked ranks of gloo, one group after the other.

    python ranks.py DATASET

Prints one JSON object: scenario → what each rank got, "ok" or the error's class and message.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import trajload as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))  # as a script it has not the path of the tests
from joining import join

ABSENT_S = 1.5
"""How long ranks wait for one that does not come. Those that do come begin together."""


def make(dataset: str, rank: int | None, world_size: int | None, **options: Any) -> tl.Loader:
    arguments = {"window": tl.Window(num_steps=3), "global_batch_size": 12, "seed": 7, "streams": ["action"]}
    return tl.Loader(dataset, **{**arguments, "num_workers": 0, "rank": rank, "world_size": world_size, **options})


def first_step(loader: tl.Loader) -> str:
    with loader:
        next(iter(loader))
    return "ok"


def alike(dataset: str, rank: int) -> str:
    """Three equal ranks; the ranks are those of the environment."""
    return first_step(make(dataset, None, None))


def other_seed(dataset: str, rank: int) -> str:
    return first_step(make(dataset, rank, 3, seed=8 if rank == 1 else 7, global_batch_size=9 if rank == 1 else 12))


def other_cursor(dataset: str, rank: int) -> str:
    """All are alike at first; then one loads an older state than the others."""
    with make(dataset, rank, 3) as loader:
        next(iter(loader))
        state = loader.state_dict()
        if rank == 2:
            state["cursor"]["train_step"] = 0
        loader.load_state_dict(state)
        next(iter(loader))
    return "ok"


def other_data(dataset: str, rank: int) -> str:
    with make(dataset, rank, 3, episodes=[0, 1] if rank == 0 else None) as loader:
        loader.check_ranks(timeout_s=20)
    return "ok"


def absent_rank(dataset: str, rank: int) -> str:
    """One process never comes: the others, which come together, say so and do not wait for ever."""
    with make(dataset, rank, 3, check_ranks=False) as loader:
        next(iter(loader))  # switched off: no one waits
        dist.barrier()
        if rank == 2:
            return "elsewhere"
        loader.check_ranks(timeout_s=ABSENT_S)
    return "ok"


def twice_the_same_rank(dataset: str, rank: int) -> str:
    """Each process calls itself rank 0 or 1 of 3."""
    return first_step(make(dataset, rank % 2, 3))


def ranks_of_nobody(dataset: str, rank: int) -> str:
    """The environment says nothing, torch.distributed has three processes."""
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name)
    return first_step(make(dataset, None, None))


def alone_in_one_process(dataset: str, rank: int) -> str:
    """Evaluation on the first rank only, which says that it is alone."""
    return first_step(make(dataset, 0, 1)) if rank == 0 else "elsewhere"


def slow_rank(dataset: str, rank: int) -> str:
    """One rank stays at its first step until the others have made all of theirs: they do not wait for it inside the loader."""
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    with make(dataset, rank, 3) as loader:
        want = [loader.batch_at(k).digest() for k in range(6)]
        for i, batch in enumerate(loader):
            assert batch.digest() == want[i]
            if rank == 0 and i == 0:
                store.wait(["slow_rank/1", "slow_rank/2"], timedelta(seconds=120))
            if i == 5:
                break
    store.set(f"slow_rank/{rank}", "through")
    return "ok"


def mesh(dataset: str, rank: int) -> str:
    """2 x 2 processes: the two of a tensor-parallel pair get the same rows, and ranks are those of the mesh."""
    from torch.distributed.device_mesh import init_device_mesh

    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with make(dataset, None, None, device_mesh=grid["dp"]) as loader:
        assert (loader.world.rank, loader.world.world_size) == (rank // 2, 2)
        assert tl.World.from_mesh(grid, "dp") == loader.world == tl.World.from_mesh(grid["dp"])
        batch = next(iter(loader))
        loader.check_ranks()
    found: list[Any] = [None] * 4
    dist.all_gather_object(found, batch.digest())
    assert found[0] == found[1] != found[2] == found[3]
    try:
        tl.World.from_mesh(grid)
    except tl.errors.ConfigError as err:
        return str(err)
    return "no error"


def workers(dataset: str, rank: int) -> str:
    """A DataLoader with worker processes checks in the parent, and the workers, forked, do not."""
    loader = make(dataset, rank, 2, seed=7 + rank)
    with loader.as_dataloader(num_workers=1, steps_per_epoch=2, multiprocessing_context="fork") as dataloader:
        next(iter(dataloader))
    return "ok"


SCENARIOS: dict[str, tuple[int, Callable[[str, int], str]]] = {
    "alike": (3, alike),
    "other_seed": (3, other_seed),
    "other_cursor": (3, other_cursor),
    "other_data": (3, other_data),
    "absent_rank": (3, absent_rank),
    "twice_the_same_rank": (3, twice_the_same_rank),
    "ranks_of_nobody": (3, ranks_of_nobody),
    "alone_in_one_process": (3, alone_in_one_process),
    "slow_rank": (3, slow_rank),
    "mesh": (4, mesh),
    "workers": (2, workers),
}


def run(
    scenario: Callable[[str, int], str], dataset: str, rank: int, world_size: int, listener: socket.socket, out: Path
) -> None:
    join(listener, rank, world_size)
    try:
        said = scenario(dataset, rank)
    except tl.TrajloadError as err:
        said = f"{type(err).__name__}: {err}"
    out.write_text(said)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    with make(sys.argv[1], 0, 1) as loader:
        next(iter(loader))  # kernels are compiled, or read from a cache, once and not in every process
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (world_size, scenario) in SCENARIOS.items():
            listener = socket.create_server(("127.0.0.1", 0), backlog=64)
            outs = [Path(folder, f"{name}-{rank}") for rank in range(world_size)]
            pids = []
            for rank in range(world_size):
                pid = os.fork()
                if pid == 0:
                    code = 1
                    try:
                        run(scenario, sys.argv[1], rank, world_size, listener, outs[rank])
                        code = 0
                    except BaseException as err:
                        print(f"{name}, rank {rank}: {type(err).__name__}: {err}", file=sys.stderr, flush=True)
                    os._exit(code)
                pids.append(pid)
            listener.close()
            statuses = [os.waitpid(pid, 0)[1] for pid in pids]
            if any(statuses):
                raise SystemExit(f"{name} failed")
            answers[name] = [out.read_text() for out in outs]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
