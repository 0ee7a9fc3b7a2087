"""A small training for the Checkpointer's tests: it forgets nothing that a checkpoint must keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from damaging import flip

import trajload as tl


class Training:
    """A model with dropout and a moving average, an optimiser, a schedule, a counter, and generators of its own."""

    def __init__(self, seed: int = 0, width: int = 8) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        self.model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))
        self.optim = torch.optim.AdamW(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optim, 3)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.counts = {"updates": 0}
        self.noise = np.random.Generator(np.random.PCG64(seed))

    @property
    def state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optim": self.optim,
            "schedule": self.schedule,
            "average": self.average,
            "counts": self.counts,
        }

    def update(self) -> str:
        x = torch.randn(8, 4) + float(self.noise.standard_normal()) + float(np.random.standard_normal())  # noqa: NPY002
        loss = self.model(x).square().mean()
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        self.schedule.step()
        self.counts["updates"] += 1
        for name, p in self.model.named_parameters():
            self.average[name].mul_(0.9).add_(p.detach(), alpha=0.1)
        return float(loss.item()).hex()

    def checkpointer(self, folder: Path, **options: Any) -> tl.Checkpointer:
        return tl.Checkpointer(folder, self.state, rng=tl.Streams(noise=self.noise), **options)


def damage(folder: Path, step: int) -> None:
    """Flip a bit of the weights of a step."""
    [file] = folder.glob(f"gen/*-s{step:09d}-*/r00000/model.safetensors")
    flip(file, -3)


def saved_at(folder: Path, *steps: int, **options: Any) -> Training:
    one = Training()
    with one.checkpointer(folder, mode="sync", keep=tl.Keep(last=9), **options) as ckpt:
        for step in steps:
            one.update()
            ckpt.save(step)
    return one
