"""Train again and again through one framework, each life killed with SIGKILL in the middle of a pass.

    python lives.py DATASET FOLDER FRAMEWORK...

Lives differ in the number of ranks (gloo), see `THROUGH`. Each rank writes one line per batch that it was given to
FOLDER/FRAMEWORK/<life>-<rank>.jsonl, before it trains on it, and is killed there at the life's last train_step. The children are forked from
a process that has imported everything and started no thread, so that a life takes about a second.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import trajload as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))  # as a script it has not the path of the tests
from joining import join
from row_digests import row_digests

STEPS_PER_PASS, EVERY, LAST = 5, 3, 12
"""Train_steps of a pass; between two checkpoints; and of the run."""

# (ranks, train_step of whose batch every rank is killed). The checkpoints before the kills are at 3, 3, 6: the second life
# is killed before it saved anything, so the third is a second resume right after the first, and crosses the end of a pass.
CHAIN = ((4, 4), (2, 3), (3, 8), (1, None))
ALONE = ((1, 4), (1, 3), (1, 8), (1, None))
PAIRS = ((2, 4), (1, 3), (2, 8), (1, None))


@dataclass
class Life:
    """One process of one life."""

    dataset: str
    folder: Path
    number: int
    rank: int
    world_size: int
    killed_at: int | None

    def loader(self, **options: Any) -> tl.Loader:
        return make_loader(self.dataset, self.rank, self.world_size, **options)

    def given(self, batch: tl.Batch) -> torch.Tensor:
        """Log a batch, end here if it is the last of this life, and return what the model takes."""
        line = json.dumps({"train_step": batch.train_step, "rows": row_digests(batch)})
        with open(self.folder / f"{self.number}-{self.rank}.jsonl", "a") as file:
            file.write(line + "\n")
        if batch.train_step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch["action"].flatten(1).float()

    def checkpoint(self, train_step: int) -> Path:
        return self.folder / f"checkpoint-{train_step:04d}"

    def latest(self) -> Path | None:
        found = sorted(self.folder.glob("checkpoint-*"))
        return found[-1] if found else None


def make_loader(dataset: str, rank: int, world_size: int, **options: Any) -> tl.Loader:
    return tl.Loader(
        dataset,
        window=tl.Window(num_steps=4, pad="edge"),
        global_batch_size=12,
        seed=11,
        streams=["cam_front", "action", "language"],
        rank=rank,
        world_size=world_size,
        **{"num_workers": 1, **options},
    )


def make_model() -> torch.nn.Module:
    model = torch.nn.Linear(4 * 2, 1)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.1)
    return model


def train_plain(life: Life, num_workers: int, save: Callable[..., None], load: Callable[..., None]) -> None:
    """A loop of one's own, in DDP where there are ranks."""
    model: torch.nn.Module = make_model()
    if life.world_size > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with life.loader().as_dataloader(
        num_workers=num_workers,
        steps_per_epoch=STEPS_PER_PASS,
        multiprocessing_context="fork" if num_workers else None,
    ) as dataloader:
        latest = life.latest()
        if latest is not None:
            load(dataloader, model, latest)
        while dataloader.loader.train_step < LAST:
            for batch in dataloader:
                model(life.given(batch)).square().mean().backward()
                optimizer.step()
                train_step = dataloader.loader.train_step
                if train_step % EVERY == 0:
                    save(dataloader, model, life.checkpoint(train_step))
                if train_step >= LAST:
                    break


def save_file(dataloader: Any, model: torch.nn.Module, path: Path) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save({"loader": dataloader.state_dict()}, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
    if dist.is_initialized():
        dist.barrier()


def load_file(dataloader: Any, model: torch.nn.Module, path: Path) -> None:
    dataloader.load_state_dict(torch.load(path, weights_only=True)["loader"])


def save_dcp(dataloader: Any, model: torch.nn.Module, path: Path) -> None:
    from torch.distributed.checkpoint import save

    save({"loader": dataloader.loader, "model": bare(model).state_dict()}, checkpoint_id=str(path))


def load_dcp(dataloader: Any, model: torch.nn.Module, path: Path) -> None:
    from torch.distributed.checkpoint import load

    load({"loader": dataloader.loader, "model": bare(model).state_dict()}, checkpoint_id=str(path))


def bare(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def through_threads(life: Life) -> None:
    train_plain(life, 0, save_file, load_file)


def through_workers(life: Life) -> None:
    train_plain(life, 2 if life.world_size < 3 else 1, save_file, load_file)


def through_dcp(life: Life) -> None:
    train_plain(life, 0, save_dcp, load_dcp)


def _live_on(life: Life, dataloader: Any) -> None:
    """Go on from the latest state of a StatefulDataLoader, which is saved as it is."""
    latest = life.latest()
    if latest is not None:
        dataloader.load_state_dict(torch.load(latest, weights_only=True))
    while True:
        for batch in dataloader:
            life.given(batch)
            done = batch.train_step + 1
            if done % EVERY == 0:
                torch.save(dataloader.state_dict(), life.checkpoint(done))
            if done >= LAST:
                return


def through_stateful(life: Life, num_workers: int) -> None:
    """torchdata's StatefulDataLoader, saved between its snapshots."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    from trajload.interop.samplers import StepSampler
    from trajload.interop.steps import TrainSteps

    loader = life.loader()
    dataloader = StatefulDataLoader(
        TrainSteps(loader),
        batch_size=None,
        sampler=StepSampler(loader, STEPS_PER_PASS),
        num_workers=num_workers,
        snapshot_every_n_steps=2,
        multiprocessing_context="fork" if num_workers else None,
    )
    _live_on(life, dataloader)


def through_rows(life: Life) -> None:
    """Rows joined by a DataLoader of one's own, saved as StatefulDataLoader does."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset, batch_sampler, collate_fn = life.loader().as_map_dataset(steps_per_epoch=STEPS_PER_PASS)
    dataloader = StatefulDataLoader(
        dataset, batch_sampler=batch_sampler, collate_fn=collate_fn, num_workers=2, multiprocessing_context="fork"
    )
    _live_on(life, dataloader)


def through_lightning(life: Life, num_workers: int) -> None:
    """Trainer.fit, resumed from the Trainer's own checkpoint."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: tl.Batch, batch_idx: int) -> torch.Tensor:
            return self.model(life.given(batch)).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

        def train_dataloader(self) -> Any:
            assert (self.trainer.global_rank, self.trainer.world_size) == (life.rank, life.world_size)
            return life.loader().as_dataloader(
                num_workers=num_workers,
                steps_per_epoch=STEPS_PER_PASS,
                multiprocessing_context="fork" if num_workers else None,
            )

    saver = ModelCheckpoint(
        life.folder,
        filename="checkpoint-{step:04d}",
        auto_insert_metric_name=False,
        every_n_train_steps=EVERY,
        save_top_k=-1,
        save_last=True,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=life.world_size,
        strategy="ddp" if life.world_size > 1 else "auto",
        max_steps=LAST,
        callbacks=[saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), ckpt_path="last")  # what the documentation shows; without save_last it would begin anew


def through_accelerate(life: Life, num_workers: int) -> None:
    """Accelerator.prepare, save_state and load_state."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    assert (accelerator.process_index, accelerator.num_processes) == (life.rank, life.world_size)
    made = life.loader().as_dataloader(
        num_workers=num_workers,
        steps_per_epoch=STEPS_PER_PASS,
        multiprocessing_context="fork" if num_workers else None,
    )
    model = make_model()
    model, optimizer, dataloader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3), made)
    assert dataloader is made
    latest = life.latest()
    if latest is not None:
        accelerator.load_state(str(latest))
    with dataloader:
        while dataloader.loader.train_step < LAST:
            for batch in dataloader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(life.given(batch)).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                train_step = dataloader.loader.train_step
                if train_step % EVERY == 0:
                    accelerator.save_state(str(life.checkpoint(train_step)))
                if train_step >= LAST:
                    break
    accelerator.end_training()


THROUGH: dict[str, tuple[tuple[tuple[int, int | None], ...], Callable[[Life], None], tuple[str, ...]]] = {
    "threads": (CHAIN, through_threads, ()),
    "workers": (CHAIN, through_workers, ()),
    "dcp": (CHAIN, through_dcp, ("torch.distributed.checkpoint",)),
    "stateful-0": (ALONE, lambda life: through_stateful(life, 0), ("torchdata.stateful_dataloader",)),
    "stateful-1": (ALONE, lambda life: through_stateful(life, 1), ("torchdata.stateful_dataloader",)),
    "stateful-2": (ALONE, lambda life: through_stateful(life, 2), ("torchdata.stateful_dataloader",)),
    "rows": (ALONE, through_rows, ("torchdata.stateful_dataloader",)),
    "lightning": (PAIRS, lambda life: through_lightning(life, 0), ("lightning",)),
    "lightning-workers": (ALONE, lambda life: through_lightning(life, 2), ("lightning",)),
    "accelerate": (CHAIN, lambda life: through_accelerate(life, 0), ("accelerate",)),
    "accelerate-workers": (ALONE, lambda life: through_accelerate(life, 2), ("accelerate",)),
}
"""Name → lives, what one process does, and modules to import before the first fork."""


def run(life: Life, through: Callable[[Life], None], listener: socket.socket) -> None:
    """Be one process."""
    os.environ.update(LOCAL_RANK=str(life.rank), LOCAL_WORLD_SIZE=str(life.world_size))
    join(listener, life.rank, life.world_size)
    through(life)
    if dist.is_initialized():
        dist.destroy_process_group()


def live(framework: str, dataset: str, folder: Path) -> None:
    """Run all lives of a framework, one after the other."""
    lives, through, _ = THROUGH[framework]
    for number, (world_size, killed_at) in enumerate(lives):
        listener, pids = socket.create_server(("127.0.0.1", 0), backlog=64), []
        for rank in range(world_size):
            pid = os.fork()
            if pid == 0:
                try:
                    run(Life(dataset, folder, number, rank, world_size, killed_at), through, listener)
                except BaseException as err:
                    traceback.print_exc()
                    print(f"life {number}, rank {rank}: {type(err).__name__}: {err}", file=sys.stderr, flush=True)
                    os._exit(1)
                os._exit(0)
            pids.append(pid)
        listener.close()
        for pid in pids:
            _, status = os.waitpid(pid, 0)
            ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
            if ended != (0 if killed_at is None else signal.SIGKILL):
                raise SystemExit(f"life {number} of {framework} ended with {ended}")


def main() -> None:
    dataset, folder, *frameworks = sys.argv[1:]
    torch.set_num_threads(1)
    # Once, before the first fork: DistributedDataParallel imports dynamo, and kernels are compiled or read from a cache.
    for module in ("torch._dynamo", *(module for framework in frameworks for module in THROUGH[framework][2])):
        __import__(module)
    with make_loader(dataset, 0, 1, num_workers=0) as loader:
        next(iter(loader)).digest()
    for framework in frameworks:
        own = Path(folder, framework)
        own.mkdir()
        live(framework, dataset, own)


if __name__ == "__main__":
    main()
