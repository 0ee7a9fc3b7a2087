"""trajload as the quickstart has it."""

from __future__ import annotations

import torch  # noqa: F401  whoever trains has it, and others' import time contains it too
from workloads.formats import format_path

from rivals.request import Batches, Request
from trajload import Image, Loader, Window


def make_loader(request: Request, order: str = "shuffled") -> Loader:
    """Return a loader of the workload; further Loader arguments come from `request.loader`."""
    work = request.workload
    lengths = dict.fromkeys(work.cameras, work.frame_steps) | dict(work.signal_steps)
    streams = {camera: Image(size=work.size) for camera in work.cameras} | dict.fromkeys(work.signal_steps)
    if len(set(lengths.values())) == 1:
        window = Window(num_steps=work.span)
    else:
        window = Window(num_steps=1, delta_indices={name: range(steps) for name, steps in lengths.items() if steps > 1})
    arguments = {"order": order, **request.loader}
    if "workers" not in arguments:
        arguments.setdefault("num_workers", request.workers)
    return Loader(
        format_path("native", work, request.data),
        window=window,
        streams=streams,
        global_batch_size=work.batch,
        seed=request.seed,
        **arguments,
    )


def batches(request: Request, order: str = "shuffled") -> Batches:
    with make_loader(request, order) as loader:
        yield from loader
