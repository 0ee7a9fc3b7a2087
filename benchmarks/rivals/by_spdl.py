"""SPDL: a pipeline of threads that demux, decode and convert one window each."""

from __future__ import annotations

import numpy as np
import spdl.io
import spdl.pipeline
from workloads.signals import make_signals
from workloads.spec import FPS
from workloads.windows import endless, locate

from rivals.request import Batch, Batches, Request


def batches(request: Request) -> Batches:
    work = request.workload
    data = work.data
    signals = [make_signals(data, episode) for episode in range(data.num_episodes)] if work.signal_steps else []
    scale = {"scale_width": work.size[1], "scale_height": work.size[0], "scale_mode": None} if work.size else {}
    wanted = spdl.io.get_video_filter_desc(pix_fmt="rgb24", scale_algo="area", **scale)

    def window(number: int) -> Batch:
        episode, start = locate(work, number)
        # Half a frame early at both ends: rounding cannot add or lose a frame.
        times = ((start - 0.5) / FPS if start else 0.0, (start + work.frame_steps - 0.5) / FPS)
        out: Batch = {}
        for camera in work.cameras:
            packets = spdl.io.demux_video(str(data.mp4(request.data, camera, episode)), timestamp=times)
            frames = spdl.io.decode_packets(packets, filter_desc=wanted)
            out[camera] = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        for name, steps in work.signal_steps.items():
            out[name] = signals[episode][name][start : start + steps]
        return out

    def collate(samples: list[Batch]) -> Batch:
        return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}

    pipeline = (
        spdl.pipeline.PipelineBuilder()
        .add_source(endless(work, request.seed))
        .pipe(window, concurrency=request.workers)
        .aggregate(work.batch)
        .pipe(collate)
        .add_sink(2)
        .build(num_threads=request.workers + 1)
    )
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()
