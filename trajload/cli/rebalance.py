"""`trajload rebalance`: the same episodes in shards of even cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trajload.cli.interrupt import told_if_interrupted
from trajload.cli.loading import Dilation, NumSteps
from trajload.cli.output import DatasetPath, JsonFlag, plural, print_json, progress_bar, say, size

__all__ = ["rebalance"]


def rebalance(
    dataset: DatasetPath,
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write; made if need be.", show_default=False)],
    shards: Annotated[int, typer.Option("--shards", help="How many shards to write.", min=1, show_default=False)],
    by: Annotated[str, typer.Option(help="What is made even: cost, bytes or steps.")] = "cost",
    costs: Annotated[
        str | None,
        typer.Option(help="Cost table for --by cost; the dataset's costs.json, or one measured now, by default."),
    ] = None,
    num_steps: NumSteps = 16,
    dilation: Dilation = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would come of it, and write nothing.")] = False,
    measure: Annotated[
        bool, typer.Option(help="Measure decode costs of the new dataset, and say how even they are.")
    ] = True,
    json: JsonFlag = False,
) -> None:
    """Write a native dataset again with its episodes dealt to shards of even cost. The old dataset is only read.

    Workers and ranks that take whole shards wait for the one with the dearest. Costs are measured decode times ('trajload
    profile'), since bytes and steps are not costs. Members keep their bytes, every checksum is compared, and a run that was
    killed goes on when it is started again. Windows are the same ones; their numbers change with the order of episodes.

    Example: trajload profile my-dataset && trajload rebalance my-dataset my-dataset-even --shards 16

    Example: trajload rebalance my-dataset my-dataset-even --shards 16 --by bytes --dry-run

    Exit codes: 0 written, 2 wrong usage, or a dataset that is damaged, 130 stopped by Ctrl-C.
    """
    from trajload.convert.rebalance import rebalance as write
    from trajload.spec import Window

    left = "nothing was written" if dry_run else "the same command goes on with the shards that are finished"
    with told_if_interrupted(f"stopped: {left}"), progress_bar("rebalancing") as bar:

        def progress(what: str, done: int, total: int) -> None:
            if bar is not None:
                bar(done, total)

        report = write(
            dataset,
            out,
            num_shards=shards,
            by=by,  # type: ignore[arg-type]
            costs=costs,
            window=Window(num_steps=num_steps, dilation=dilation),
            dry_run=dry_run,
            measure=measure,
            progress=progress,
        ).to_json()
    if json:
        print_json(report)
    else:
        _print(report)


def _print(report: Mapping[str, Any]) -> None:
    verb = "would write" if report["dry_run"] else "found finished:" if report["was_there"] else "wrote"
    say(
        f"{verb} {report['out']}: {plural(report['num_episodes'], 'episode')} in {plural(report['num_shards'], 'shard')}"
        + (f", {size(report['num_bytes'])} in {report['seconds']:.1f} s" if not report["dry_run"] else "")
    )
    if report["num_shards_kept"] and not report["was_there"]:
        say(f"{plural(report['num_shards_kept'], 'shard')} of an earlier run were whole and kept")
    _say_spread(f"predicted, by {report['by']}", report["predicted"])
    if report["measured"] is not None:
        _say_spread("measured decode cost", report["measured"])
    for remark in report["notes"]:
        say(f"note: {remark}")
    if report["digest"]:
        say(f"digest: {report['digest']}")


def _say_spread(what: str, spread: Mapping[str, Any]) -> None:
    before, after = spread["before"], spread["after"]
    say(
        f"{what}: the dearest shard was {before['max_over_mean']:.3f} times the average of {before['num_shards']}, is "
        f"{after['max_over_mean']:.3f} times that of {after['num_shards']}"
    )
