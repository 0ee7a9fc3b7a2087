"""Trainings for the continuation tests: one that saves all it should, and ones that forget something."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

import trajload as tl
from trajload.checkpoint import Training


def make(dataset: str | None = None, forget: str | None = None, ranks: int = 1) -> Training:
    """A small model with dropout, moments, a schedule, a moving average, a plain counter, four kinds of generators, a loader.

    Args:
        dataset: Whose batches it takes; none draws its inputs.
        forget: Component that is not saved.
        ranks: How many train together; gradients are averaged.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(1)  # noqa: NPY002
    random.seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
    optim = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 3, gamma=0.9)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    counts = {"updates": 0}
    own = np.random.Generator(np.random.PCG64(3))
    state: dict[str, Any] = {
        "model": model,
        "optim": optim,
        "schedule": schedule,
        "average": average,
        "counts": counts,
    }
    loader = None
    if dataset is not None:
        loader = tl.Loader(
            dataset,
            window=tl.Window(num_steps=4),
            global_batch_size=4,
            seed=5,
            streams=["action", "proprioception"],
            num_workers=1,
        )
        state["loader"] = loader
        batches = None

    def inputs() -> tuple[torch.Tensor, Any]:
        nonlocal batches
        if loader is None:
            return torch.randn(8, 6), None
        batches = batches or iter(loader)
        batch = next(batches)
        values: dict[str, torch.Tensor] = batch
        return torch.cat([values["action"], values["proprioception"]], -1).flatten(0, 1), batch

    def step() -> dict[str, Any]:
        x, batch = inputs()
        noise = float(np.random.standard_normal()) + random.random() + float(own.random())  # noqa: NPY002
        loss = model(x + noise).square().mean()
        optim.zero_grad()
        loss.backward()
        if ranks > 1:
            import torch.distributed as dist

            for p in model.parameters():
                dist.all_reduce(p.grad)
        optim.step()
        schedule.step()
        counts["updates"] += 1
        with torch.no_grad():
            for name, p in model.named_parameters():
                average[name].lerp_(p, 1.0 / counts["updates"])
        return {"loss": loss, "noise": noise, "batch": batch, "updates": counts["updates"]}

    rng = tl.Streams() if forget == "own" else tl.Streams(own=own)
    state.pop(forget or "", None)
    return Training(state, step, rng=rng, close=None if loader is None else loader.close)


def make_unseeded() -> Training:
    """One of whose generators begins anywhere."""
    training = make()
    random.seed()
    return training
