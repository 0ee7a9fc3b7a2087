"""`trajload profile`: what decoding costs, by episode, shard and stream."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trajload.cli.interrupt import EXIT_INTERRUPTED, stopped_by_ctrl_c
from trajload.cli.loading import Dilation, NumSteps, SizeOption, SkipMissing, Streams, parse_size
from trajload.cli.output import (
    DatasetPath,
    JsonFlag,
    check_file_can_be_written,
    plural,
    print_json,
    progress_bar,
    say,
    table,
)
from trajload.errors import ConfigError

__all__ = ["print_kinds", "print_shards", "profile"]

_MAX_SHARDS = 20


def profile(
    dataset: DatasetPath,
    out: Annotated[
        str | None,
        typer.Option(help="File for the cost table; costs.json in the folder of a native dataset by default."),
    ] = None,
    num_steps: NumSteps = 16,
    dilation: Dilation = 1,
    stream: Streams = None,
    size: SizeOption = None,
    max_episodes: Annotated[
        int | None, typer.Option(help="Measure this many, spread evenly; estimate the others.", min=1)
    ] = None,
    windows: Annotated[int, typer.Option(help="Windows measured of each episode and stream.", min=1)] = 4,
    repeats: Annotated[int, typer.Option(help="Times each is decoded; the least counts.", min=1)] = 3,
    skip_missing: SkipMissing = False,
    json: JsonFlag = False,
) -> None:
    """Measure what windows cost to decode: seconds of CPU time by codec, size and keyframe distance, and what shards cost.

    The table goes to costs.json, which 'trajload rebalance' makes shards even by and tl.Loader(load_weights=...) ranks. Sizes
    and the window's length should be those that you train with. Other work on the machine disturbs little: CPU time is
    counted, not time on the wall, and the least of several repeats.

    Example: trajload profile my-dataset

    Example: trajload profile my-dataset --num-steps 16 --size 128x128 --max-episodes 200 --json

    Ctrl-C ends it early: episodes that were not measured by then are estimated, and a table that was there is left alone unless --out
    names it.

    Exit codes: 0 measured, 2 wrong usage or a window that cannot be read, 130 stopped by Ctrl-C.
    """
    from pathlib import Path

    from trajload.costs.profile import profile as measure
    from trajload.sources.open import open as open_dataset
    from trajload.spec import Image, Window

    opened = open_dataset(dataset, missing="skip" if skip_missing else "error")
    if out is None and opened.kind != "native":
        raise ConfigError(
            f"{opened.path!r} is a {opened.kind} dataset, beside which nothing is written: pass --out costs.json."
        )
    target = Path(opened.path, "costs.json") if out is None else Path(out)
    check_file_can_be_written(str(target), "--out")
    wanted = parse_size(size)
    names = (
        [opened.spec(name).name for name in stream]
        if stream
        else [n for n, s in opened.streams.items() if not s.is_text]
    )
    requests = {name: Image(size=wanted) if wanted and opened.spec(name).is_picture else None for name in names}
    with stopped_by_ctrl_c() as stop:
        with progress_bar("decoding windows") as progress:
            found = measure(
                opened,
                window=Window(num_steps=num_steps, dilation=dilation),
                streams=requests,
                max_episodes=max_episodes,
                windows_per_episode=windows,
                repeats=repeats,
                progress=progress,
                stop=stop,
            )
        report = found.report.to_json()
        # What a whole run measured is worth more than what this one did.
        is_kept = report["stopped"] and out is None and target.exists()
        if not is_kept:
            found.table.save(target)
        if json:
            machine = found.table.info["machine"]
            digest = None if is_kept else found.table.digest
            print_json(
                {**report, "costs": None if is_kept else str(target), "costs_digest": digest, "machine": machine}
            )
        else:
            _print(report, str(target), is_native=opened.kind == "native", is_kept=is_kept)
    if stop.wanted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _print(report: Mapping[str, Any], target: str, *, is_native: bool, is_kept: bool) -> None:
    say(
        f"{report['dataset']}: windows of {report['window']['num_steps']} steps, measured in {report['num_measured']} of "
        f"{plural(report['num_episodes'], 'episode')}, video by {report['backend']}, {report['seconds']:.1f} s"
    )
    print_kinds(report["kinds"])
    table(
        ["stream", "CPU s an epoch", "share"],
        [[name, f"{s['seconds']:.2f}", f"{s['share']:.0%}"] for name, s in report["streams"].items()],
    )
    print_shards(report["shards"])
    spread = report["spread"]
    say(
        f"the dearest of {plural(spread['num_shards'], 'shard')} costs {spread['max_over_mean']:.2f} times the average, the cheapest "
        f"{spread['min_over_mean']:.2f} times"
    )
    dearest = report["dearest"][0]
    say(
        f"dearest episode: {dearest['episode']}, {dearest['seconds']:.2f} s; a step of it costs {dearest['step_over_mean']:.1f} times the average"
    )
    if report["stopped"]:
        say(
            f"Stopped early: {report['num_measured']} of {plural(report['num_wanted'], 'episode')} were measured, the others are estimated."
        )
    say(f"left {target} as it was: pass --out to write this table" if is_kept else f"wrote {target}")
    if spread["max_over_mean"] > 1.1 and spread["num_shards"] > 1:
        path = shlex.quote(report["path"])
        even = f"trajload rebalance {path} OUT --shards {spread['num_shards']}"
        if not is_native:
            even = f"trajload convert {path} NATIVE, then trajload rebalance NATIVE OUT --shards N"
        say(f"workers that take whole shards wait for the dearest: {even}")


def print_kinds(kinds: list[Mapping[str, Any]]) -> None:
    """Print what a row and a frame before it cost, by kind of stream."""
    table(
        ["stream", "codec", "size", "GOP", "ms a row", "ms a frame before it"],
        [
            [
                kind["stream"],
                kind["codec"],
                "x".join(map(str, kind["shape"])) or "scalar",
                kind["gop"] or "",
                f"{kind['row_ms']:.3f}",
                f"{kind['lead_ms']:.3f}" if kind["gop"] > 1 else "",
            ]
            for kind in kinds
        ],
    )


def print_shards(shards: list[Mapping[str, Any]]) -> None:
    """Print what shards cost, the dearest first."""
    dearest = sorted(shards, key=lambda shard: -shard["seconds"])
    table(
        ["shard", "episodes", "CPU s an epoch"],
        [[s["shard"], s["num_episodes"], f"{s['seconds']:.2f}"] for s in dearest[:_MAX_SHARDS]],
    )
    if len(dearest) > _MAX_SHARDS:
        say(f"and {plural(len(dearest) - _MAX_SHARDS, 'shard')} that cost less")
