"""Ray Train with two workers, both killed in the middle of a pass: Ray starts them again from the last checkpoint.

    python ray_job.py DATASET FOLDER

Each worker writes a line per batch to FOLDER/<attempt>-<rank>.jsonl.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

STEPS_PER_PASS, EVERY, LAST, KILLED_AT = 5, 3, 10, 7


def train(config: dict[str, Any]) -> None:
    """Be one worker. Ray sets RANK and WORLD_SIZE for torch: `World.from_env` reads them."""
    import trajload as tl

    context = ray.train.get_context()
    loader = tl.Loader(
        config["dataset"],
        window=tl.Window(num_steps=4, pad="edge"),
        global_batch_size=12,
        seed=11,
        streams=["action"],
        num_workers=1,
    )
    assert (loader.world.rank, loader.world.world_size) == (context.get_world_rank(), context.get_world_size())
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 1))
    # Not through prepare_data_loader: it takes a batch ahead of the one it gives, so that the state would be one too far.
    dataloader = loader.as_dataloader(steps_per_epoch=STEPS_PER_PASS)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            dataloader.load_state_dict(json.loads(Path(folder, "loader.json").read_text()))
    attempt = 0 if checkpoint is None else 1
    log = Path(config["folder"], f"{attempt}-{loader.world.rank}.jsonl")
    while loader.train_step < LAST:
        for batch in dataloader:
            with log.open("a") as file:
                file.write(
                    json.dumps({"train_step": batch.train_step, "window_id": batch["window_id"].tolist()}) + "\n"
                )
            if attempt == 0 and batch.train_step == KILLED_AT:
                time.sleep(4)  # Ray takes note of a reported checkpoint within seconds; the other worker logs its batch
                os.kill(os.getpid(), signal.SIGKILL)
            model(batch["action"].flatten(1).float()).sum().backward()
            if loader.train_step % EVERY == 0:
                with tempfile.TemporaryDirectory() as folder:
                    Path(folder, "loader.json").write_text(json.dumps(dataloader.state_dict()))
                    saved = Checkpoint.from_directory(folder) if loader.world.rank == 0 else None
                    ray.train.report({"train_step": loader.train_step}, checkpoint=saved)
            if loader.train_step >= LAST:
                break
    loader.close()


def main() -> None:
    dataset, folder = sys.argv[1:]
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    try:
        TorchTrainer(
            train,
            train_loop_config={"dataset": dataset, "folder": folder},
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(storage_path=str(Path(folder, "ray")), failure_config=FailureConfig(max_failures=1)),
        ).fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
