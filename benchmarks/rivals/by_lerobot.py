"""LeRobotDataset with `delta_timestamps` in a DataLoader."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from workloads.formats import format_path, lerobot_key
from workloads.spec import FPS
from workloads.windows import locate

from rivals import stand_in
from rivals._torch_loader import load
from rivals.request import Batches, Request

stand_in.use_where_torchvision_is_missing()
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402


class _Resize:
    """Resizing as an image transform; on floats, which is what LeRobotDataset hands to it."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(pictures, size=self.size, mode="bilinear", antialias=True)


def batches(request: Request, backend: str) -> Batches:
    work = request.workload
    lengths = dict.fromkeys(work.cameras, work.frame_steps) | dict(work.signal_steps)
    dataset = LeRobotDataset(
        "bench/data",
        root=format_path("lerobot", work, request.data),
        delta_timestamps={lerobot_key(name): [i / FPS for i in range(steps)] for name, steps in lengths.items()},
        image_transforms=_Resize(work.size) if work.size else None,
        video_backend=backend,
    )

    def number(window: int) -> int:
        episode, start = locate(work, window)
        return episode * work.data.num_steps + start

    for batch in load(dataset, request, number):
        out = {name: batch[lerobot_key(name)] for name in lengths}
        for name in work.signal_steps:
            if out[name].ndim == 2:  # signals of one value lose their last axis
                out[name] = out[name][..., None]
        yield out
