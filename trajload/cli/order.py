"""`trajload order`: which windows a train_step takes, and how good an order is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trajload.cli.loading import BatchSize, Dilation, NumSteps, Order, Pad, Seed, Stride
from trajload.cli.output import DatasetPath, JsonFlag, print_json, say, table

if TYPE_CHECKING:
    from trajload.sampling.sampler import Sampler
    from trajload.sources.base import Dataset

__all__ = ["order"]

BlockWindows = Annotated[
    int, typer.Option(help="Windows of a block: of interleaved, and counted for other orders.", min=1)
]
LanesPerRow = Annotated[int, typer.Option(help="Blocks in use per row of the batch, for interleaved.", min=1)]


def order(
    dataset: DatasetPath,
    quality: Annotated[bool, typer.Option("--quality", help="Score the order against a uniform shuffle.")] = False,
    train_step: Annotated[int, typer.Option(help="Whose windows are listed, without --quality.", min=0)] = 0,
    num_steps: NumSteps = 16,
    stride: Stride = 1,
    dilation: Dilation = 1,
    pad: Pad = "none",
    batch_size: BatchSize = 16,
    seed: Seed = 0,
    name: Annotated[str, typer.Option("--order", help=Order.__metadata__[0].help)] = "shuffled",  # type: ignore[attr-defined]
    block_windows: BlockWindows = 16,
    lanes_per_row: LanesPerRow = 4,
    num_batches: Annotated[int, typer.Option(help="Batches that --quality looks at.", min=2)] = 256,
    json: JsonFlag = False,
) -> None:
    """Show which windows a train_step takes, or with --quality how good an order is: computed, nothing is decoded.

    The scores: different episodes and blocks in a batch and episodes shared with the next batch, each beside what a
    uniform shuffle gives; new blocks a batch and how evenly they come; how often a block is taken up in an epoch, and
    how many ranks need it.

    Example: trajload order my-dataset --quality --order interleaved --batch-size 32

    Example: trajload order my-dataset --train-step 1000000 --json

    Exit codes: 0 shown, 2 wrong usage, or the dataset cannot be opened.
    """
    from trajload.sampling.orders import Interleaved, order_config
    from trajload.sampling.quality import measure_quality
    from trajload.sampling.sampler import Sampler
    from trajload.sampling.windows import WindowTable
    from trajload.sources.open import open as open_dataset
    from trajload.spec import Window

    opened = open_dataset(dataset)
    window = Window(num_steps=num_steps, stride=stride, dilation=dilation, pad=pad)  # type: ignore[arg-type]
    config = order_config(name)
    if isinstance(config, Interleaved):
        config = replace(config, block_windows=block_windows, lanes_per_row=lanes_per_row)
    sampler = Sampler(WindowTable(opened.num_steps_E, window), order=config, seed=seed, global_batch_size=batch_size)
    if quality:
        scores = measure_quality(sampler, block_windows=block_windows, num_batches=num_batches).to_json()
        print_json(scores) if json else _print_quality(scores, batch_size)
        return
    listed = _windows(sampler, opened, train_step)
    print_json(listed) if json else _print_windows(listed)


def _windows(sampler: Sampler, dataset: Dataset, train_step: int) -> dict[str, Any]:
    refs = sampler.refs(train_step)
    uses = sampler.block_uses(refs)
    span = sampler.table.window.span
    rows = [
        {
            "row": b,
            "episode_index": int(refs.episode_B[b]),
            "episode_key": dataset.episode_key(int(refs.episode_B[b])),
            "start": int(refs.start_B[b]),
            "stop": int(refs.start_B[b]) + span,
            "window_id": int(refs.window_id_B[b]),
            "epoch": int(refs.epoch_B[b]),
            "position": int(refs.position_B[b]),
            **({} if uses is None else {"block": int(uses.block_B[b]), "lane": int(uses.lane_B[b])}),
        }
        for b in range(len(refs))
    ]
    return {
        "order": sampler.order,
        "num_windows": sampler.num_windows,
        "steps_per_epoch": sampler.num_windows / sampler.global_batch_size,
        "train_step": train_step,
        "rows": rows,
    }


def _print_windows(listed: Mapping[str, Any]) -> None:
    say(
        f"order {listed['order']}: {listed['num_windows']:,} windows, {listed['steps_per_epoch']:,.1f} train_steps an epoch"
    )
    say(f"train_step {listed['train_step']}:")
    columns = ["row", "episode", "steps", "window", "epoch", "position"]
    more = [key for key in ("block", "lane") if key in listed["rows"][0]]
    table(
        columns + more,
        [
            [
                row["row"],
                row["episode_key"],
                f"[{row['start']}, {row['stop']})",
                row["window_id"],
                row["epoch"],
                row["position"],
                *(row[key] for key in more),
            ]
            for row in listed["rows"]
        ],
    )


def _print_quality(scores: Mapping[str, Any], batch_size: int) -> None:
    first, stop = scores["train_steps"]
    lanes = "" if scores["num_lanes"] is None else f", {scores['num_lanes']:,} lanes"
    say(f"order {scores['order']}: {scores['num_windows']:,} windows, {scores['num_blocks']:,} blocks{lanes}")
    say(f"batches of {batch_size}, train_steps [{first}, {stop}):")
    got, uniform = scores["got"], scores["uniform"]
    table(
        ["a batch", "this order", "uniform"],
        [
            ["different episodes", f"{got['distinct_episodes']:.2f}", f"{uniform['distinct_episodes']:.2f}"],
            ["different blocks", f"{got['distinct_blocks']:.2f}", f"{uniform['distinct_blocks']:.2f}"],
            ["episodes shared with the next", f"{got['shared_with_next']:.2f}", f"{uniform['shared_with_next']:.2f}"],
        ],
    )
    if scores["load"] is not None:
        load = scores["load"]
        say(f"new blocks a batch: {load['mean']:.2f}; the busiest 8 batches {load['largest_over_mean']:.2f} times that")
    say(f"each block is taken up {scores['uses_per_block']:.2f} times an epoch")
    for ranks, number in scores["ranks_per_block"].items():
        say(f"  on {ranks} ranks {number:.3f} of them need it")
