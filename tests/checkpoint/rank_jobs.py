"""What the ranks of the multi-rank tests do; each function is called in a process of its own and writes one JSON line."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import trajload as tl
from trajload.errors import TrajloadError

TIMEOUT_S = 2.0
"""How long ranks wait for one that has died, on a machine that is quick; see `patience_s`."""
LONG_S = 120.0
"""How long they wait for one that comes."""


def serve(port_file: str) -> None:
    """Keep the key-value store of a job, as a launcher does, until killed: no rank's death takes it away."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    Path(port_file + ".tmp").write_text(str(store.port))
    Path(port_file + ".tmp").rename(port_file)
    while True:
        time.sleep(60)


def join(rank: int, world: int, port: int) -> None:
    """Initialise torch.distributed with the store at `port`."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=LONG_S))


def tell(out: str, value: Any) -> None:
    Path(out + ".tmp").write_text(json.dumps(value))
    Path(out + ".tmp").rename(out)


def leave() -> None:
    dist.barrier()
    dist.destroy_process_group()


def digest(tensors: dict[str, Any]) -> str:
    """Return a digest of tensors, sharded ones put together."""
    told = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        told.update(name.encode() + whole.detach().contiguous().numpy().tobytes())
    return told.hexdigest()


class Replica:
    """A model that is the same on every rank, and generators that are not."""

    def __init__(self, rank: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(40, 40)
        self.optim = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(100 + rank)
        self.noise = np.random.Generator(np.random.PCG64(rank))
        self.state: dict[str, Any] = {"model": self.model, "optim": self.optim}

    def update(self, step: int) -> None:
        self.optim.zero_grad()
        (self.model.weight * float(step)).sum().backward()
        self.optim.step()
        self.draws()

    def draws(self) -> list[float]:
        return [float(torch.rand(())), float(self.noise.random())]

    def checkpointer(self, folder: str, **options: Any) -> tl.Checkpointer:
        options = {"mode": "sync", "timeout_s": LONG_S, "retries": 0, "max_aborted": 1, **options}
        return tl.Checkpointer(folder, self.state, rng=tl.Streams(noise=self.noise), **options)


def die_while_saving(
    folder: str, rank: int, world: int, port: int, out: str, victim: int, where: str, mode: str
) -> None:
    """Save step 1, then step 2 with rank `victim` killing itself `where`; tell how it went."""
    join(rank, world, port)
    one = Replica(rank)
    dist.barrier()  # nobody is late because others, of other jobs, have the processor
    ckpt = one.checkpointer(folder, mode=mode)
    ckpt.resume()
    one.update(1)
    begin = time.monotonic()
    ckpt.save(1)
    ckpt.wait()
    timeout_s = patience_s(time.monotonic() - begin)
    one.update(2)
    dist.barrier()

    def reached(step: str) -> None:
        if rank == victim and step == where:
            os.kill(os.getpid(), signal.SIGKILL)

    assert ckpt._saver is not None
    ckpt.settings = replace(ckpt.settings, timeout_s=timeout_s)
    ckpt._saver._reached, ckpt._saver._timeout_s = reached, timeout_s
    begin = time.monotonic()
    raised = None
    try:
        ckpt.save(2)
        ckpt.wait()
    except TrajloadError as err:
        raised = f"{type(err).__name__}: {err}"
    tell(out, {"raised": raised, "after_s": time.monotonic() - begin, "timeout_s": timeout_s})
    os._exit(0)  # a process group with a dead member cannot be left in good order


def patience_s(save_s: float) -> float:
    """Return how long ranks, all of them, shall wait for each other, given how long a save took this one.

    On a machine that is busy with other things a rank that lives must not be taken for dead.
    """
    longest = torch.tensor(save_s)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return max(TIMEOUT_S, 5 * float(longest))


def go_on(folder: str, rank: int, world: int, port: int, out: str, save_at: int | None = None) -> None:
    """Resume, tell what was found and the next draws, and save once more."""
    join(rank, world, port)
    one = Replica(rank + 50)
    with one.checkpointer(folder) as ckpt:
        report = ckpt.resume()
        told = {"step": report.step, "weights": digest(dict(one.model.state_dict())), "diffs": report.diffs}
        told["fell_back"] = [fault.seq for fault in report.fell_back_from]
        if save_at is not None:
            ckpt.save(save_at)
        told["draws"] = one.draws()
        tell(out, told)
        dist.barrier()
    leave()


def train(folder: str, rank: int, world: int, port: int, out: str, steps: int) -> None:
    """Make `steps` updates and saves; tell weights and next draws after each."""
    join(rank, world, port)
    one = Replica(rank)
    rows = []
    with one.checkpointer(folder, keep=tl.Keep(last=9)) as ckpt:
        ckpt.resume()
        for step in range(1, steps + 1):
            one.update(step)
            ckpt.save(step)
            before = tl.Streams(noise=one.noise).state_dict()
            rows.append({"weights": digest(dict(one.model.state_dict())), "draws": one.draws()})
            tl.Streams(noise=one.noise).load_state_dict(before)
        tell(out, rows)
        dist.barrier()
    leave()


def differ(folder: str, rank: int, world: int, port: int, out: str) -> None:
    """Save with ranks that are at different steps; tell the error, and what stands in the store."""
    join(rank, world, port)
    one = Replica(rank)
    with one.checkpointer(folder) as ckpt:
        ckpt.resume()
        try:
            ckpt.save(7 + rank)
            raised = ""
        except TrajloadError as err:
            raised = f"{type(err).__name__}: {err}"
        tell(out, {"raised": raised, "generations": len(list(Path(folder, "gen").iterdir()))})
    leave()


def keep_own(folder: str, rank: int, world: int, port: int, out: str) -> None:
    """Resume, or save, with state of each rank's own."""
    join(rank, world, port)
    own = {"seen": torch.zeros(2)}
    with tl.Checkpointer(folder, {"model": torch.nn.Linear(2, 2)}, rank_state={"own": own}, mode="sync") as ckpt:
        raised = ""
        try:
            report = ckpt.resume()
            if report.fresh:
                own["seen"] += rank + 1
                ckpt.save(1)
        except TrajloadError as err:
            raised = f"{type(err).__name__}: {err}"
        tell(out, {"raised": raised, "own": own["seen"].tolist()})
    leave()


def due(folder: str, rank: int, world: int, port: int, out: str) -> None:
    """Save by the clock, which only rank 0 has running: all save at the same steps."""
    join(rank, world, port)
    one = Replica(rank)
    begun = []
    with one.checkpointer(folder, every=tl.Every(seconds=100.0)) as ckpt:
        ckpt.resume()
        for step in range(1, 9):
            if rank == 0 and step in (3, 6):
                ckpt._clock._since -= 1000.0
            if ckpt.step(step):
                begun.append(step)
        tell(out, begun)
        dist.barrier()
    leave()


def one_rank_differs(folder: str, rank: int, world: int, port: int, out: str, data: str) -> None:
    """Save and resume with tags, and hooks, that are those of one rank only; tell what each rank raised, and what it held then."""
    join(rank, world, port)
    dataset = tl.open(data)
    tags = ["research"]
    dataset.provenance = lambda: {"consent_tags": tags}  # type: ignore[method-assign]
    counts, told = {"updates": 0}, []

    def loader() -> tl.Loader:
        window = tl.Window(num_steps=4)
        options: dict[str, Any] = {"streams": ["action"], "num_workers": 0, "rank": rank, "world_size": world}
        return tl.Loader(dataset, window=window, global_batch_size=4, **options)

    def attempt(what: str, act: Any) -> None:
        begin, raised = time.monotonic(), ""
        try:
            act()
        except Exception as err:
            raised = f"{type(err).__name__}: {err}"
        told.append(
            {"what": what, "raised": raised, "late": time.monotonic() - begin > 20, "updates": counts["updates"]}
        )

    def resume(what: str, **options: Any) -> None:
        counts["updates"] = 0
        with loader() as other, tl.Checkpointer(folder, {"loader": other, "counts": counts}, **options) as ckpt:
            attempt(what, ckpt.resume)
            assert other.train_step == 3 * counts["updates"]

    def fail(report: Any) -> None:
        raise ConnectionError("no engine")

    with loader() as mine, tl.Checkpointer(folder, {"loader": mine, "counts": counts}, mode="sync") as ckpt:
        ckpt.resume()
        for _, _ in zip(range(3), mine, strict=False):
            pass
        counts["updates"] = 1
        tags += ["faces"] * (rank == 1)
        attempt("tag of the data", lambda: ckpt.save(3))
        tags[:] = ["research", "faces"]
        attempt("save", lambda: ckpt.save(3))
        dist.barrier()
    for odd in range(world):
        resume(f"tag refused by {odd}", allowed_tags=["research", *["faces"] * (rank != odd)])
        resume(f"tags asked for by {odd}", allowed_tags=["research"] if rank == odd else None)
        resume(f"hook of {odd}", after_resume=fail if rank == odd else None)
    resume("in the end", after_resume=lambda report: None)
    tell(out, told)
    leave()


# ---- sharded ----


def shard(
    folder: str, rank: int, world: int, port: int, out: str, steps: int, width: int, mode: str, cut: bool = True
) -> None:
    """Train an FSDP2 model on from the newest checkpoint; tell digests of what was resumed and of what came after."""
    from torch.distributed.fsdp import fully_shard

    join(rank, world, port)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))
    for layer in (model[0], model[2], model) if cut else ():
        fully_shard(layer)
    optim = torch.optim.AdamW(model.parameters(), lr=0.01)
    state: dict[str, Any] = {"model": model, "optim": optim, "counts": {"updates": 0}}
    with tl.Checkpointer(folder, state, rng=tl.Streams(), mode=mode, timeout_s=LONG_S) as ckpt:  # type: ignore[arg-type]
        raised, told = "", {}
        try:
            report = ckpt.resume()
            told = {"step": report.step, "resumed": of_all(model, optim), "diffs": report.diffs}
            for step in range(report.next_step or 1, steps + 1):
                x = torch.arange(12.0).reshape(2, 6) / step
                model(x).square().mean().backward()
                optim.step()
                optim.zero_grad()
                state["counts"]["updates"] += 1
                ckpt.save(step)
                told[f"after {step}"] = of_all(model, optim)
            ckpt.wait()
            told["updates"] = state["counts"]["updates"]
        except TrajloadError as err:
            raised = f"{type(err).__name__}: {err}"
        tell(out, {**told, "raised": raised})
        dist.barrier()
    leave()


def pieces(folder: str, rank: int, world: int, port: int, out: str, value: float, beside: int = 3) -> None:
    """Resume, or save, sharded tensors in whatever a component may be; tell what each holds, and objects that were replaced."""
    from torch.distributed._shard.sharded_tensor import Shard as Piece
    from torch.distributed._shard.sharded_tensor import init_from_local_shards
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    join(rank, world, port)
    mesh, full = init_device_mesh("cpu", (world,)), torch.arange(14.0).reshape(7, 2) * value

    def cut() -> Any:
        return distribute_tensor(full.clone(), mesh, [Shard(0)])

    rows = torch.tensor_split(torch.arange(7), world)[rank]
    mine = Piece.from_tensor_and_offsets(full[rows].clone(), [int(rows[0]), 0], rank)
    old_kind = init_from_local_shards([mine], 7, 2)  # FSDP1's and torchrec's
    box = {"w": cut()}
    state: dict[str, Any] = {
        "in_dict": {"deep": {"w": cut()}, "beside": torch.full((beside,), value), "count": int(value)},
        "in_list": [cut(), 3],
        "bare": cut(),
        "by_functions": tl.checkpoint.Component(get=lambda: {"w": box["w"]}, set=lambda saved: box.update(saved)),
        "old_kind": {"w": old_kind},
    }
    held = [state["in_dict"]["deep"]["w"], state["in_list"][0], state["bare"]]
    raised = ""
    with tl.Checkpointer(folder, state, mode="async", timeout_s=LONG_S) as ckpt:
        try:
            if ckpt.resume().fresh:
                ckpt.save(1)
                ckpt.wait()
        except TrajloadError as err:
            raised = f"{type(err).__name__}: {err}"
        now = [state["in_dict"]["deep"]["w"], state["in_list"][0], state["bare"]]
        tensors = [*now, box["w"]]
        told = {"whole": [tensor.full_tensor().tolist() for tensor in tensors], "raised": raised}
        told["same"] = [a is b for a, b in zip(held, now, strict=True)]
        told["rows"] = mine.tensor.tolist()
        told["beside"] = [state["in_dict"]["beside"].tolist(), state["in_dict"]["count"]]
        tell(out, told)
        dist.barrier()
    leave()


def of_all(model: torch.nn.Module, optim: torch.optim.Optimizer) -> str:
    tensors: dict[str, Any] = dict(model.state_dict())
    for index, entries in optim.state_dict()["state"].items():
        tensors |= {f"{index}.{name}": value for name, value in entries.items()}
    return digest(tensors)
