"""Grain over ArrayRecord: a window a record, globally shuffled."""

from __future__ import annotations

import grain
import numpy as np
import torchcodec.decoders  # noqa: F401  its loading belongs to the import time
from workloads.clips import open_clip, unpack
from workloads.formats import format_path

from rivals._torch_loader import torchcodec_frames
from rivals.request import Batch, Batches, Request


def batches(request: Request, processes: bool = True) -> Batches:
    work = request.workload
    source = grain.sources.ArrayRecordDataSource(
        str(format_path("arrayrecord", work, request.data) / "windows.array_record")
    )

    def decode(record: bytes) -> Batch:
        sample = open_clip(work, unpack(record), lambda *where: torchcodec_frames(work, *where))
        return {name: np.asarray(value) for name, value in sample.items()}

    windows = grain.MapDataset.source(source).seed(request.seed).shuffle().repeat(None).map(decode)
    if processes:
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2 * work.batch)
        dataset = windows.to_iter_dataset(options).batch(work.batch, drop_remainder=True)
        dataset = dataset.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=request.workers, per_worker_buffer_size=2)
        )
    else:
        options = grain.ReadOptions(num_threads=request.workers, prefetch_buffer_size=2 * work.batch)
        dataset = windows.to_iter_dataset(options).batch(work.batch, drop_remainder=True)
    iterator = iter(dataset)
    try:
        yield from iterator
    finally:
        iterator.close()  # else its processes and shared memory outlive this one
