"""Write the store of format version 1 that later releases must read: `python make_store.py FOLDER`. Run once, for each version."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch

import trajload as tl


def values() -> dict[str, Any]:
    """Return one of everything that a tree may hold."""
    weights = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return {
        "plain": [None, True, 3, -(2**70), 0.1, float("-inf"), "text \ud800", b"bytes", bytearray(b"more"), 1 + 2j],
        "nested": {"tuple": (1, (2,)), "set": {1, 2}, "frozen": frozenset({"a"}), "size": torch.Size([2, 3])},
        "kinds": {1: "int", "1": "text", None: "none", (1, "a"): "tuple", "$tensor": "word", "a.b/c": torch.ones(1)},
        "collections": [deque([1, 2], maxlen=3), OrderedDict(b=1, a=2), defaultdict(list, x=[1]), Counter("aab")],
        "torch": [
            weights,
            weights,
            weights.t(),
            torch.tensor(1.5),
            torch.empty(0, 3),
            torch.float8_e5m2,
            torch.device("cpu"),
        ],
        "dtypes": [
            torch.ones(3).to(dtype) for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64)
        ],
        "numpy": [
            np.arange(3, dtype=">i4"),
            np.asfortranarray(np.eye(2)),
            np.array(["a", "bc"]),
            np.float32(0.1),
            np.int64(7),
        ],
        "long": bytes(range(256)) * 8,
    }


def training() -> tuple[dict[str, Any], tl.Streams]:
    """Return components of every kind, in a state of their own, and their streams."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optim = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optim, 2)
    cursor = {"at": 5}
    own = tl.checkpoint.Component(lambda: dict(cursor), cursor.update)
    state = {"model": model, "optim": optim, "schedule": schedule, "values": values(), "own": own}
    return state, tl.Streams(noise=np.random.Generator(np.random.PCG64(3)), other=torch.Generator().manual_seed(4))


def update(state: dict[str, Any]) -> None:
    state["model"](torch.ones(4, 3) + torch.arange(4)[:, None]).square().mean().backward()
    state["optim"].step()
    state["schedule"].step()


if __name__ == "__main__":
    state, streams = training()
    with tl.Checkpointer(sys.argv[1], state, rng=streams, mode="sync", run_id="golden") as ckpt:
        for step in (1, 2):
            update(state)
            ckpt.save(step, metrics={"loss": 0.5})
        ckpt.pin("first", 1)
