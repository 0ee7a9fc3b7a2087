"""MosaicML Streaming: a window a sample, shuffled by its default algorithm."""

from __future__ import annotations

from typing import Any

import torchcodec.decoders  # noqa: F401  its loading belongs to the import time
from workloads.clips import open_clip
from workloads.formats import format_path

from rivals import stand_in
from rivals._torch_loader import torchcodec_frames
from rivals.request import Batch, Batches, Request

stand_in.use_where_torchvision_is_missing()
from streaming import StreamingDataLoader, StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402


class Windows(StreamingDataset):
    def __init__(self, request: Request, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.workload = request.workload

    def __getitem__(self, at: Any) -> Batch:
        sample = super().__getitem__(at)
        return open_clip(self.workload, sample, lambda *where: torchcodec_frames(self.workload, *where))


def batches(request: Request) -> Batches:
    work = request.workload
    clean_stale_shared_memory()  # what an earlier, killed run left makes the next one fail
    dataset = Windows(
        request,
        local=str(format_path("mds", work, request.data)),
        shuffle=True,
        shuffle_seed=request.seed,
        batch_size=work.batch,
        num_canonical_nodes=1,
    )
    loader = StreamingDataLoader(
        dataset, batch_size=work.batch, num_workers=request.workers, prefetch_factor=2, drop_last=True
    )
    while True:
        yield from loader
