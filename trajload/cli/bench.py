"""`trajload bench`: how fast this dataset loads here, what holds it up, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trajload.cli.bench_view import live_numbers, print_comparison, print_report, print_sweep
from trajload.cli.interrupt import EXIT_INTERRUPTED, stopped_by_ctrl_c
from trajload.cli.loading import (
    Dilation,
    Order,
    Pad,
    Seed,
    SizeOption,
    SkipMissing,
    Streams,
    Stride,
    Transforms,
    arguments_from_config,
    loader_arguments,
    loader_of,
    parse_transforms,
    read_json,
)
from trajload.cli.mixture import mixture_code, open_all
from trajload.cli.output import EXIT_ERROR, JsonFlag, check_file_can_be_written, note, print_json, progress_bar
from trajload.cli.output import size as show_size
from trajload.errors import ConfigError
from trajload.stop import Stop

if TYPE_CHECKING:
    from trajload.bench.measure import Measured

__all__ = ["bench"]


def bench(
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATASET...", help="A native dataset or a LeRobot folder; several are mixed.", show_default=False
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Shares of several datasets in a batch, for instance 2,1; even by default.", show_default=False
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time measured after the warm-up.", min=0.1)] = 10.0,
    batches: Annotated[int | None, typer.Option(help="Stop after so many batches.", min=1)] = None,
    config: Annotated[str | None, typer.Option(help="JSON file with the loader's configuration.")] = None,
    num_steps: Annotated[int, typer.Option("--num-steps", "--window", help="Steps in a window.", min=1)] = 16,
    stride: Stride = 1,
    dilation: Dilation = 1,
    pad: Pad = "none",
    batch_size: Annotated[
        int, typer.Option("--batch-size", "--batch", help="Windows per train_step, over all ranks.", min=1)
    ] = 16,
    seed: Seed = 0,
    order: Order = "shuffled",
    stream: Streams = None,
    size: SizeOption = None,
    transform: Transforms = None,
    workers: Annotated[int | None, typer.Option(help="Decoder threads; one per CPU by default.", min=0)] = None,
    processes: Annotated[int, typer.Option(help="Worker processes that share them; 0: threads.", min=0)] = 0,
    readers: Annotated[int, typer.Option(help="Reader threads.", min=1)] = 1,
    prefetch: Annotated[
        int | None, typer.Option(help="Train_steps in the works at once; chosen by default.", min=1)
    ] = None,
    decode: Annotated[str, typer.Option(help="Who decodes video: cpu, auto or cuda.")] = "cpu",
    device: Annotated[str | None, typer.Option(help="Where batches are delivered, for instance cuda.")] = None,
    consumer_ms: Annotated[
        float,
        typer.Option("--consumer-ms", "--step-ms", help="Pretend that training takes so long per batch.", min=0),
    ] = 0.0,
    headspace: Annotated[
        bool, typer.Option(help="Test the verdict: measure again with decoding and reading left out.")
    ] = True,
    try_advice: Annotated[bool, typer.Option("--try", help="Measure again with the advice applied.")] = False,
    trace: Annotated[
        str | None, typer.Option(help="Write a timeline of every thread, for ui.perfetto.dev or chrome://tracing.")
    ] = None,
    html: Annotated[str | None, typer.Option(help="Write a report with plots, one file.")] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Compare two outputs of --json; no DATASET then.")
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(help="Find the best setting: some of workers,prefetch,order,backend,readers, joined by commas."),
    ] = None,
    skip_missing: SkipMissing = False,
    json: JsonFlag = False,
) -> None:
    """Measure a real loader on this dataset: what the consumer waits for, the stage that holds it up, and what to change.

    Without --consumer-ms the consumer does nothing, so it always waits and the limit is the loader's own. With --consumer-ms
    set to the time of your training step it tells whether the accelerator would wait. Files are read through the page
    cache: the first run after a boot reads slower.

    Example: trajload bench my-dataset --window 16 --batch 32 --size 128x128 --html report.html

    Example: trajload bench my-dataset --consumer-ms 120 --trace trace.json --json

    Example: trajload bench my-dataset --sweep workers,prefetch

    Example: trajload bench sim-data robot-data --weights 2,1 --size 128x128

    Example: trajload bench --compare before.json after.json

    Ctrl-C ends it early, with what was measured by then; a second one at once.

    Exit codes: 0 measured, 2 wrong usage or a window that cannot be read, 130 stopped by Ctrl-C.
    """
    if compare is not None:
        _compare(datasets, compare, json)
        return
    if not datasets:
        raise ConfigError("bench needs a DATASET, or --compare with two files.")
    axes = None if sweep is None else _axes(sweep)
    for path, option in ((trace, "--trace"), (html, "--html")):
        check_file_can_be_written(path, option)  # before minutes are spent
    from trajload.bench.measure import measure_with_details
    from trajload.sampling.mixture_sources import Mixture

    opened = open_all(datasets, weights, skip_missing=skip_missing)
    if config is not None:
        arguments = arguments_from_config(read_json(config), f"configuration {config!r}")
        arguments.pop("num_epochs", None)
        arguments.pop("drop_last", None)
    else:
        arguments = loader_arguments(
            opened, num_steps=num_steps, stride=stride, dilation=dilation, pad=pad, batch_size=batch_size, seed=seed,
            order=order, streams=stream, size=size,
        )  # fmt: skip
    if transform:
        arguments["transforms"] = parse_transforms(transform)
    more: dict[str, Any] = {"num_workers": workers, "num_readers": readers, "prefetch": prefetch or "auto"}
    more["workers"] = f"processes:{processes}" if processes else "threads"
    more |= {"decode": decode, "device": device, "rank": 0, "world_size": 1}
    step_s = consumer_ms / 1000
    with stopped_by_ctrl_c() as stop, loader_of(opened, arguments, **more) as loader:
        if axes is not None:
            code = mixture_code(datasets, opened) if isinstance(opened, Mixture) else repr(datasets[0])
            _sweep(loader, code, axes, seconds, step_s, json, stop)
            return
        extra_s = max(0.5, seconds / 5)
        with live_numbers() as progress:
            measured = measure_with_details(
                loader,
                seconds=seconds,
                step_s=step_s,
                progress=progress,
                headspace_s=extra_s if headspace else 0.0,
                try_s=extra_s if try_advice else 0.0,
                trace=trace is not None or html is not None,
                num_batches=batches,
                stop=stop,
            )
        is_written = _tell(measured, trace, html, json)
        if not is_written:
            raise typer.Exit(EXIT_ERROR)
        if stop.wanted:
            raise typer.Exit(EXIT_INTERRUPTED)


def _tell(measured: Measured, trace: str | None, html: str | None, json: bool) -> bool:
    """Print a measurement and write the files that were asked for; return whether all of them could be written.

    What was measured is told whatever becomes of the files.
    """
    from trajload.bench.html import write_html
    from trajload.bench.trace import lanes_of, write_trace

    report = measured.report.to_json()
    lanes = lanes_of(measured.seen.spans)
    is_written = True
    try:
        if trace is not None:
            num_bytes = write_trace(trace, lanes)
            note(f"{trace}: {show_size(num_bytes)}; open it in ui.perfetto.dev")
        if html is not None:
            write_html(html, report, lanes)
            note(f"{html}: open it in a browser")
    except OSError as err:
        is_written = False
        note(f"{err.filename or 'a file'} cannot be written: {err.strerror or err}. What was measured follows.")
    if json:
        print_json(report)
    else:
        print_report(report)
    return is_written


def _compare(datasets: list[str] | None, paths: tuple[str, str], json: bool) -> None:
    from dataclasses import asdict

    from trajload.bench.compare import compare, load_report

    if datasets:
        raise ConfigError(
            f"--compare reads two files and measures nothing: leave out {', '.join(map(repr, datasets))}."
        )
    lines = compare(*(load_report(path) for path in paths))
    if json:
        print_json({"a": paths[0], "b": paths[1], "lines": [asdict(line) for line in lines]})
    else:
        print_comparison(paths, lines)


def _axes(text: str) -> list[str]:
    from trajload.bench.sweep import AXES

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(AXES):
        raise ConfigError(f"--sweep {text!r} is unusable: expected some of {', '.join(AXES)}, joined by commas.")
    return list(dict.fromkeys(names))


def _sweep(loader: Any, dataset: str, names: list[str], seconds: float, step_s: float, json: bool, stop: Stop) -> None:
    from trajload.bench.sweep import as_code, shown_arguments, sweep

    with progress_bar("trying settings") as bar:
        found = sweep(
            loader,
            names,
            seconds=seconds,
            step_s=step_s,
            progress=None if bar is None else lambda done, total, _: bar(done, total),
            stop=stop,
        )
    code = as_code(dataset, shown_arguments(loader), found.best)
    if json:
        print_json({**found.to_json(), "code": code})
    else:
        print_sweep(found, code)
    if stop.wanted:
        raise typer.Exit(EXIT_INTERRUPTED)
