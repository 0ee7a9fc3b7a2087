"""Is a resumed run really the same run? Train, checkpoint at update 512, and make 16 more updates twice: here, and resumed.

usage: python examples/exact_continuation.py [folder]

The dataset has 1,664 windows. The model has dropout, its inputs get noise from NumPy, its learning rate follows a schedule,
and a moving average of its weights is kept. The second time everything is built anew in a new process, with other seeds,
and comes from the checkpoint. Losses, parameters, moments, the moving average, and the draws of torch and NumPy must be
equal to the last bit; anything that a checkpoint forgets shows here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import trajload as tl
from trajload.checkpoint.trace import leaves_of, value_of

UPDATES, MORE = 512, 16
NUM_EPISODES, EPISODE_STEPS, NUM_STEPS = 26, 79, 16  # 26 episodes of 64 windows

STREAMS = [
    tl.StreamSpec(name="state", modality=tl.Modality.PROPRIOCEPTION, encoding="npy", shape=(4,), dtype="float32"),
    tl.StreamSpec(name="action", modality=tl.Modality.ACTION, encoding="npy", shape=(2,), dtype="float32"),
]


def write_dataset(folder: Path) -> None:
    """Write a swarm of damped points that are pushed around."""
    draw = np.random.Generator(np.random.PCG64(26))
    with tl.Writer(folder, streams=STREAMS, name="pushed", step_rate_hz=20) as writer:
        for episode in range(NUM_EPISODES):
            action = draw.standard_normal((EPISODE_STEPS, 2)).astype(np.float32)
            state = np.zeros((EPISODE_STEPS, 4), np.float32)
            for t in range(1, EPISODE_STEPS):
                velocity = 0.9 * state[t - 1, 2:] + 0.1 * action[t - 1]
                state[t] = np.concatenate([state[t - 1, :2] + velocity, velocity])
            writer.add_episode({"state": state, "action": action}, key=f"episode-{episode}", terminated=True)


class Run:
    """A training, and the Checkpointer that holds all of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - code that draws from NumPy's global generator exists, and must resume as well
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 64), torch.nn.SiLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 4)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, UPDATES + MORE)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.loader = tl.Loader(
            folder / "dataset", window=tl.Window(num_steps=NUM_STEPS), global_batch_size=16, seed=7, num_workers=0
        )
        self.checkpointer = tl.Checkpointer(
            folder / "checkpoints",
            state={
                "model": self.model,
                "optimizer": self.optimizer,
                "schedule": self.schedule,
                "average": self.average,
                "loader": self.loader,
            },
            rng=tl.Streams(),
            every=tl.Every(steps=UPDATES),
        )

    def train(self, until: int) -> list[dict[str, Any]]:
        """Train up to `until` updates; return of each what must be equal in a run that continues."""
        rows = []
        for batch in self.loader:
            x = torch.cat([batch["state"], batch["action"]], -1)[:, :-1]
            noise = np.random.standard_normal(x.shape).astype(np.float32)  # noqa: NPY002
            change = batch["state"][:, 1:] - batch["state"][:, :-1]
            loss = (self.model(x + 0.01 * torch.from_numpy(noise)) - change).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    self.average[name].lerp_(p, 0.01)
            self.checkpointer.step(self.loader.train_step)
            rows.append({"loss": value_of(loss), "batch": batch.digest(), "noise": value_of(noise)})
            if self.loader.train_step == until:
                return rows
        raise AssertionError("the loader has no end")

    def everything(self) -> dict[str, str]:
        """Return every parameter, moment, counter and random state, and the next draws."""
        whole = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "average": self.average}
        found = leaves_of({**whole, "rng": tl.Streams()})
        found["next draw of torch"] = value_of(torch.rand(4))
        found["next draw of NumPy"] = value_of(np.random.standard_normal(4))  # noqa: NPY002
        return found

    def close(self) -> None:
        self.checkpointer.close()
        self.loader.close()


def resumed(folder: Path) -> None:
    """Be the new process: from the checkpoint at 512, make 16 updates, and write down what they were."""
    run = Run(folder, seed=1234)
    report = run.checkpointer.resume(at=UPDATES)
    rows = run.train(UPDATES + MORE)
    (folder / "resumed.json").write_text(json.dumps([report.step, rows, run.everything()]))
    run.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="for dataset and checkpoints; a temporary one by default")
    parser.add_argument("--resumed", action="store_true", help="be the process that continues")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.resumed:
        return resumed(args.folder)
    if args.folder is not None and (args.folder / "manifest.json").exists():
        parser.error(
            f"{args.folder} is a dataset: this script writes one of its own. Name a folder to work in, or none."
        )
    with tempfile.TemporaryDirectory() as temporary:
        compare(args.folder or Path(temporary))
    return None


def compare(folder: Path) -> None:
    """Train here, continue there, and compare."""
    if not (folder / "dataset").exists():
        write_dataset(folder / "dataset")
    run = Run(folder, seed=0)
    print(f"{run.loader.num_windows} windows")
    if not run.checkpointer.resume().fresh:
        raise SystemExit(f"{folder} holds checkpoints of an earlier run: choose another folder.")
    run.train(UPDATES)
    expected_rows = run.train(UPDATES + MORE)
    expected = run.everything()
    run.close()
    subprocess.run([sys.executable, __file__, str(folder), "--resumed"], check=True)
    step, rows, found = json.loads((folder / "resumed.json").read_text())
    print(f"checkpoint at update {step}, {len(rows)} updates made twice")
    wrong = [
        f"update {UPDATES + 1 + i}: {key}"
        for i in range(MORE)
        for key in rows[i]
        if rows[i][key] != expected_rows[i][key]
    ]
    wrong += [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    if wrong:
        raise SystemExit("DIFFERENT: " + ", ".join(wrong))
    print(f"EQUAL: {MORE} losses, batches and draws, and {len(expected)} values of the state, to the last bit")


if __name__ == "__main__":
    main()
