"""Train on two datasets in exact shares, change the shares halfway, and look at the loss of each.

usage: python examples/train_mixture.py [sim robot] [--steps 400]
       Without datasets, two of the demo's are generated in ./demo-sim and ./demo-robot. Seconds on one CPU core.

The model guesses where the pusher is next. "robot" is sampled at half the rate, so its world moves twice as far in a
step: a model that has mostly seen "sim" is worse at it until the weights change. `batch["source"]` names each row's.
"""

# Shapes: B windows, T steps, D values of proprioception and action together

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import trajload as tl
from trajload.demo.job import prepare_dataset

NUM_STEPS, BATCH = 8, 40


def make_mixture(sim: Path, robot: Path, change_at: int) -> tl.Mixture:
    """Return 9 to 1 in favour of sim until train_step `change_at`, and half and half from there on."""
    return tl.Mixture(
        {
            "sim": tl.Source(sim, weight={0: 0.9, change_at: 0.5}),
            # Its own window: as many steps as the other's, but every second one. What is left out comes from the Loader.
            "robot": tl.Source(
                robot, weight={0: 0.1, change_at: 0.5}, window=tl.Window(num_steps=NUM_STEPS, dilation=2, pad="edge")
            ),
        },
        by="windows",  # weights are shares of the rows of a batch
    )


def errors(model: nn.GRU, head: nn.Linear, batch: tl.Batch) -> Tensor:
    """Return each window's mean squared error of the next velocity and move, in dm and dm/s: (B,). Padding counts nowhere."""
    values: dict[str, Any] = batch
    motion_BT4 = 10.0 * values["proprioception"]
    hidden, _ = model(torch.cat([motion_BT4, values["action"]], -1)[:, :-1])
    error_BT = (motion_BT4[:, :-1] + head(hidden) - motion_BT4[:, 1:]).square().mean(-1)
    real_BT = batch.valid_mask("proprioception") & batch.valid_mask("action")
    pair_BT = (real_BT[:, 1:] & real_BT[:, :-1]).float()
    return (error_BT * pair_BT).sum(1) / pair_BT.sum(1).clamp(min=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", type=Path, help="two of them, with proprioception and action")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--log-every", type=int, default=40)
    args = parser.parse_args()
    if len(args.datasets) not in (0, 2):
        parser.error(f"expected two datasets or none, got {len(args.datasets)}")

    torch.set_num_threads(1)  # the sum of many numbers then does not depend on how many cores are there
    torch.manual_seed(0)
    sim, robot = args.datasets or [
        prepare_dataset(folder, num_episodes=8, seed=seed) for folder, seed in (("demo-sim", 1), ("demo-robot", 2))
    ]
    mixture = make_mixture(sim, robot, change_at=args.steps // 2)
    model, head = nn.GRU(6, 64, batch_first=True), nn.Linear(64, 4)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=2e-3)
    rows, sums = dict.fromkeys(mixture.sources, 0), dict.fromkeys(mixture.sources, 0.0)
    with tl.Loader(
        mixture,
        window=tl.Window(num_steps=NUM_STEPS, pad="edge"),
        global_batch_size=BATCH,
        seed=0,
        streams={"proprioception": tl.Signal(align="linear"), "action": tl.Signal()},
    ) as loader:
        for batch in loader:
            if batch.train_step >= args.steps:
                break
            error_B = errors(model, head, batch)
            optimizer.zero_grad()
            error_B.mean().backward()  # over all rows: the weights are what decides how much a source counts
            optimizer.step()
            # The source of each row: for losses like these, for a loss weight, for a head of each robot.
            for source, error in zip(batch["source"], error_B.tolist(), strict=True):
                rows[source] += 1
                sums[source] += error
            done = batch.train_step + 1
            if done % args.log_every == 0 or done == args.steps:
                told = "  ".join(
                    f"{name}: {rows[name]} rows, loss {sums[name] / max(rows[name], 1):.9g}" for name in rows
                )
                print(f"train_step {done}  {told}", flush=True)
                rows, sums = dict.fromkeys(rows, 0), dict.fromkeys(rows, 0.0)
        print(f"shares now: {loader.stats()['shares']}")


if __name__ == "__main__":
    main()
