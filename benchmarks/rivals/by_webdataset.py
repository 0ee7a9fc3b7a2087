"""WebDataset: an episode a sample, decoded as a whole, cut into all its windows, mixed in a shuffle buffer."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torchcodec.decoders  # noqa: F401  its loading belongs to the import time
import webdataset as wds
from workloads.formats import format_path

from rivals._torch_loader import torchcodec_decoder
from rivals.request import Batch, Batches, Request

BUFFER, SIGNAL_BUFFER = 2_000, 20_000
"""Windows in each worker's buffer, with and without pictures: about 7 and 90 episodes. More mixes better, and costs memory."""


def batches(request: Request) -> Batches:
    work = request.workload
    buffer = BUFFER if work.cameras else SIGNAL_BUFFER
    tars = sorted(str(path) for path in format_path("webdataset", work, request.data).glob("*.tar"))

    def windows(episodes: Iterable[Batch]) -> Iterator[Batch]:
        draw = random.Random(request.seed)
        for sample in episodes:
            whole: Batch = {}
            for camera in work.cameras:
                decoder = torchcodec_decoder(work, sample[f"{camera}.mp4"])
                whole[camera] = decoder.get_frames_in_range(0, work.data.num_steps).data
            for name in work.signal_steps:
                whole[name] = torch.from_numpy(np.load(io.BytesIO(sample[f"{name}.npy"])))
            lengths = dict.fromkeys(work.cameras, work.frame_steps) | dict(work.signal_steps)
            starts = list(range(work.starts))
            draw.shuffle(starts)
            for start in starts:
                # Views: an episode's frames live as long as one of its windows waits in the buffer.
                yield {name: whole[name][start : start + steps] for name, steps in lengths.items()}

    dataset = (
        wds.WebDataset(tars, shardshuffle=len(tars), seed=request.seed)
        .repeat()
        .compose(windows)
        .shuffle(buffer, initial=buffer // 2)
        .batched(work.batch, collation_fn=torch.utils.data.default_collate, partial=False)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=request.workers, prefetch_factor=2)
    yield from loader
