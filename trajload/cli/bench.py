"""`trajload bench`: how fast this dataset loads here, and what holds it up."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trajload.cli.loading import (
    BatchSize,
    Dilation,
    NumSteps,
    Order,
    Pad,
    Seed,
    SizeOption,
    SkipMissing,
    Streams,
    Stride,
    arguments_from_config,
    loader_arguments,
    loader_of,
    read_json,
)
from trajload.cli.output import DatasetPath, JsonFlag, print_json, progress_bar, say, table

__all__ = ["bench"]


def bench(
    dataset: DatasetPath,
    seconds: Annotated[float, typer.Option(help="Time measured after the warm-up.", min=0.1)] = 10.0,
    config: Annotated[str | None, typer.Option(help="JSON file with the loader's configuration.")] = None,
    num_steps: NumSteps = 16,
    stride: Stride = 1,
    dilation: Dilation = 1,
    pad: Pad = "none",
    batch_size: BatchSize = 16,
    seed: Seed = 0,
    order: Order = "shuffled",
    stream: Streams = None,
    size: SizeOption = None,
    workers: Annotated[int | None, typer.Option(help="Decoder threads; one per CPU by default.", min=0)] = None,
    prefetch: Annotated[
        int | None, typer.Option(help="Train_steps in the works at once; chosen by default.", min=1)
    ] = None,
    step_ms: Annotated[float, typer.Option(help="Pretend that training takes so long per batch.", min=0)] = 0.0,
    skip_missing: SkipMissing = False,
    json: JsonFlag = False,
) -> None:
    """Measure a real loader on this dataset: windows/s, waiting, mixing, memory, and the stage that holds it up.

    Without --step-ms the consumer does nothing, so it always waits and the limit is the loader's own. With --step-ms set
    to the time of your training step it tells whether the accelerator would wait. Files are read through the page cache:
    the first run after a boot reads slower.

    Example: trajload bench my-dataset --num-steps 16 --batch-size 32 --size 128x128

    Example: trajload bench my-dataset --step-ms 120 --workers 8 --json

    Exit codes: 0 measured, 2 wrong usage or a window that cannot be read.
    """
    from trajload.bench import measure
    from trajload.sources.open import open as open_dataset

    opened = open_dataset(dataset, missing="skip" if skip_missing else "error")
    if config is not None:
        arguments = arguments_from_config(read_json(config), f"configuration {config!r}")
        arguments.pop("num_epochs", None)
        arguments.pop("drop_last", None)
    else:
        arguments = loader_arguments(
            opened, num_steps=num_steps, stride=stride, dilation=dilation, pad=pad, batch_size=batch_size, seed=seed,
            order=order, streams=stream, size=size,
        )  # fmt: skip
    more = {"num_workers": workers, "prefetch": prefetch or "auto", "rank": 0, "world_size": 1}
    with loader_of(opened, arguments, **more) as loader, progress_bar("measuring") as progress:
        report = measure(loader, seconds=seconds, step_s=step_ms / 1000, progress=progress).to_json()
    if json:
        print_json({**report, "machine": _machine()})
    else:
        _print(report)


def _machine() -> dict[str, Any]:
    import os
    from importlib.metadata import version

    names = ("trajload", "torch", "numpy", "av", "numba")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "versions": {name: version(name) for name in names},
    }


def _print(report: Mapping[str, Any]) -> None:
    say(
        f"{report['dataset']}: windows of {report['num_steps']} steps, {report['global_batch_size']} per batch, order {report['order']}, "
        f"{report['num_workers']} workers, prefetch {report['prefetch']}"
    )
    low, high = report["windows_per_s_min"], report["windows_per_s_max"]
    mixing = f"{report['distinct_episodes_per_batch']:.1f} (uniform: {report['distinct_episodes_uniform']:.1f})"
    table(
        ["measured", f"over {report['seconds']:.1f} s"],
        [
            ["windows/s", f"{report['windows_per_s']:.1f} ({low:.1f} to {high:.1f})"],
            ["frames/s", f"{report['frames_per_s']:.0f}"],
            ["read", f"{report['read_mb_per_s']:.1f} MB/s"],
            ["first batch", f"{report['first_batch_s']:.2f} s"],
            [
                "consumer waits",
                f"{report['wait_share']:.0%} of the time, longest {report['longest_wait_s'] * 1000:.0f} ms",
            ],
            ["distinct episodes per batch", mixing],
            ["memory", f"{report['rss_mb']:.0f} MB, peak {report['peak_rss_mb']:.0f} MB"],
            *([f"busy: {stage}", f"{share:.0%}"] for stage, share in report["busy"].items()),
        ],
    )
    say(f"bottleneck: {report['bottleneck']}. {report['advice']}")
