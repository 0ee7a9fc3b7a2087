"""Train a tiny world model, and continue exactly where you stopped: kill this at any moment and run it again.

usage: python examples/train_world_model.py [dataset] [checkpoints] [--train-steps 300]
       Without a dataset, the demo's is generated in ./demo-dataset. Less than a minute on one CPU core.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

import trajload as tl
from trajload.demo.job import prepare_dataset
from trajload.demo.model import make_model, make_optimizer


def main(argv: Sequence[str] | None = None) -> float:
    """Train, and return the last loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "dataset", nargs="?", type=Path, help="with cam_front, action, proprioception, reward; default: the demo's"
    )
    parser.add_argument(
        "checkpoints",
        nargs="?",
        type=Path,
        default=Path("world-model-checkpoints"),
        help="folder; training continues from the newest one",
    )
    parser.add_argument("--train-steps", type=int, default=300)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    args = parser.parse_args(argv)

    model = make_model(seed=7)
    optimizer = make_optimizer(model)
    loader = tl.Loader(
        args.dataset or prepare_dataset("demo-dataset", num_episodes=24, seed=0),
        window=tl.Window(num_steps=16, pad="edge"),
        global_batch_size=16,
        seed=7,
        order="shuffled",
        streams={
            "cam_front": tl.Image(size=(64, 64)),
            "action": tl.Signal(),
            "reward": tl.Signal(),
            "proprioception": tl.Signal(align="nearest"),  # 100 Hz, on its own clock
        },
    )
    loss = torch.tensor(float("nan"))
    checkpointer = tl.Checkpointer(
        args.checkpoints,
        {"model": model, "optimizer": optimizer, "loader": loader},
        every=tl.Every(steps=args.checkpoint_every),
    )
    with loader, checkpointer:
        report = checkpointer.resume()
        if not report.fresh:
            print(f"continuing at train_step {loader.train_step}")  # the next batch is exactly the one that came next
        for batch in loader:
            if batch.train_step >= args.train_steps:
                break
            loss = model.losses(batch).total  # steps beyond an episode's end are masked: batch.valid_mask(...)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            is_last = loader.train_step == args.train_steps
            is_saved = checkpointer.step(loader.train_step)  # copied here, written while training goes on
            if is_last and not is_saved:
                checkpointer.save(loader.train_step)
            if is_saved or is_last:
                print(f"train_step {loader.train_step}: loss {loss.item():.4f}")
    return loss.item()


if __name__ == "__main__":
    main()
