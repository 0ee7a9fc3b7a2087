"""The DataLoader that hand-written loaders use, and the decoder they keep open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from workloads.spec import Workload
from workloads.windows import endless

from rivals.request import Batches, Request


class Endless(torch.utils.data.Sampler):
    """Window numbers in the shared random order, for ever; `number` turns them into what a data set counts."""

    def __init__(self, workload: Workload, seed: int, number: Callable[[int], int] = int) -> None:
        self.workload, self.seed, self.number = workload, seed, number

    def __iter__(self) -> Iterator[int]:
        return map(self.number, endless(self.workload, self.seed))


def load(dataset: torch.utils.data.Dataset, request: Request, number: Callable[[int], int] = int) -> Batches:
    """Yield batches of a map-style data set, as users have it: forked workers, two batches ahead each."""
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=request.workload.batch,
        sampler=Endless(request.workload, request.seed, number),
        num_workers=request.workers,
        prefetch_factor=2,
        multiprocessing_context="fork",
    )
    yield from loader


def torchcodec_frames(workload: Workload, source: Any, first: int, end: int, order: str = "NCHW") -> torch.Tensor:
    """Return frames [first, end) of a file or of bytes, resized while decoding where the workload wants it."""
    return torchcodec_decoder(workload, source, order).get_frames_in_range(first, end).data


def torchcodec_decoder(workload: Workload, source: Any, order: str = "NCHW") -> Any:
    """Return a decoder at its fastest settings: approximate seek is right for these files (the check reads barcodes)."""
    from torchcodec.decoders import VideoDecoder

    options: dict[str, Any] = {}
    if workload.size:
        from torchcodec.transforms import Resize

        options["transforms"] = [Resize(workload.size)]
    return VideoDecoder(source, seek_mode="approximate", num_ffmpeg_threads=1, dimension_order=order, **options)
