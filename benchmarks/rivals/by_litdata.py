"""LitData: a window an item of an optimized data set."""

from __future__ import annotations

from typing import Any

import torchcodec.decoders  # noqa: F401  its loading belongs to the import time
from litdata import StreamingDataLoader, StreamingDataset
from workloads.clips import open_clip
from workloads.formats import format_path

from rivals._torch_loader import torchcodec_frames
from rivals.request import Batch, Batches, Request


class Windows(StreamingDataset):
    def __init__(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.workload = request.workload

    def __getitem__(self, at: Any) -> Batch:
        sample = super().__getitem__(at)
        return open_clip(self.workload, sample, lambda *where: torchcodec_frames(self.workload, *where))


def batches(request: Request) -> Batches:
    work = request.workload
    dataset = Windows(
        request, str(format_path("litdata", work, request.data)), shuffle=True, seed=request.seed, drop_last=True
    )
    loader = StreamingDataLoader(
        dataset, batch_size=work.batch, num_workers=request.workers, prefetch_factor=2, drop_last=True
    )
    while True:
        yield from loader
