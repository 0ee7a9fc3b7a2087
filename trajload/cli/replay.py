"""`trajload replay`: exactly what a train_step trained on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

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
    Transforms,
    arguments_from_config,
    loader_arguments,
    loader_of,
    parse_transforms,
    read_json,
)
from trajload.cli.output import DatasetPath, JsonFlag, print_json, say, table
from trajload.errors import ConfigError

if TYPE_CHECKING:
    from trajload.collate.batch import Batch

__all__ = ["replay"]


def replay(
    dataset: DatasetPath,
    train_step: Annotated[
        int | None, typer.Option(help="Which optimiser step; the state's next one by default.", min=0)
    ] = None,
    config: Annotated[str | None, typer.Option(help="JSON file with the loader's configuration.")] = None,
    state: Annotated[
        str | None, typer.Option(help="JSON file with a loader.state_dict(), or one inside {'loader': ...}.")
    ] = None,
    num_steps: NumSteps = 16,
    stride: Stride = 1,
    dilation: Dilation = 1,
    pad: Pad = "none",
    batch_size: BatchSize = 16,
    seed: Seed = 0,
    order: Order = "shuffled",
    stream: Streams = None,
    size: SizeOption = None,
    transform: Transforms = None,
    rank: Annotated[int, typer.Option(help="Data-parallel rank.", min=0)] = 0,
    world_size: Annotated[int, typer.Option(help="Number of ranks.", min=1)] = 1,
    out: Annotated[str | None, typer.Option("--out", "-o", help="PNG to write; train-step-N.png by default.")] = None,
    sheet: Annotated[bool, typer.Option(help="Draw the contact sheet.")] = True,
    max_rows: Annotated[int, typer.Option(help="Windows drawn.", min=1)] = 8,
    max_steps: Annotated[int, typer.Option(help="Steps drawn per window.", min=1)] = 8,
    skip_missing: SkipMissing = False,
    json: JsonFlag = False,
) -> None:
    """Show exactly what one train_step trained on: the windows as a list, and as a contact sheet.

    A batch is a function of dataset, configuration and train_step, so any batch of any run can be made again, without
    replaying the run, and with the very augmentation it had; --json lists what was drawn. Describe the loader by options, by --config, or by --state: the state that the run saved also
    checks that the dataset is the same, and knows which bad windows were replaced.

    Example: trajload replay my-dataset --train-step 12345 --num-steps 16 --batch-size 32 --seed 7

    Example: trajload replay my-dataset --train-step 3 --transform '{"name": "RandomCrop", "size": [96, 96]}'

    Example: trajload replay my-dataset --state checkpoint/loader.json --train-step 12344 --json

    Exit codes: 0 shown, 2 wrong usage, a state that does not fit, or a window that cannot be read.
    """
    from trajload.sources.open import open as open_dataset

    opened = open_dataset(dataset, missing="skip" if skip_missing else "error")
    ranks = {"rank": rank, "world_size": world_size, "num_workers": 0}
    if state is not None and config is None:
        saved = read_json(state)
        saved = saved["loader"] if isinstance(saved.get("loader"), dict) else saved
        arguments = arguments_from_config(saved.get("config", {}), f"state {state!r}")
    elif config is not None:
        saved = read_json(state) if state is not None else {}
        arguments = arguments_from_config(read_json(config), f"configuration {config!r}")
    else:
        saved = {}
        arguments = loader_arguments(
            opened, num_steps=num_steps, stride=stride, dilation=dilation, pad=pad, batch_size=batch_size, seed=seed,
            order=order, streams=stream, size=size,
        )  # fmt: skip
    if transform:
        arguments["transforms"] = parse_transforms(transform)
    with loader_of(opened, arguments, **ranks) as loader:
        if saved:
            loader.load_state_dict(saved)
        if train_step is None and not saved:
            raise ConfigError("which train_step? Pass --train-step N, or --state FILE for the one that comes next.")
        wanted = loader.train_step if train_step is None else train_step
        batch = loader.batch_at(wanted)
        draws = loader.draws_at(wanted) if arguments.get("transforms") else [[] for _ in batch.refs]
        order_name, num_windows = loader.order, loader.num_windows
    path = None
    if sheet:
        from trajload.view import contact_sheet

        path = contact_sheet(batch, out or f"train-step-{wanted}.png", max_rows=max_rows, max_steps=max_steps)
    if json:
        print_json(_to_json(batch, draws, order_name, num_windows, None if path is None else str(path)))
    else:
        _print(batch, draws, order_name, num_windows, None if path is None else str(path))


def _to_json(
    batch: Batch, draws: list[list[dict[str, Any]]], order: str, num_windows: int, png: str | None
) -> dict[str, Any]:
    return {
        "train_step": batch.train_step,
        "order": order,
        "num_windows": num_windows,
        "digest": batch.digest(),
        "png": png,
        "keys": {
            key: f"list of {len(value)}" if isinstance(value, list) else f"{_dtype(value)} {tuple(value.shape)}"
            for key, value in batch.items()
        },
        "rows": [{**asdict(ref), "augment": drawn} for ref, drawn in zip(batch.refs, draws, strict=True)],
    }


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _print(batch: Batch, draws: list[list[dict[str, Any]]], order: str, num_windows: int, png: str | None) -> None:
    say(
        f"train_step {batch.train_step}: {len(batch.refs)} windows, order {order} over {num_windows:,} windows per epoch"
    )
    say(f"digest of the batch: {batch.digest()}")
    table(
        ["row", "source", "episode", "steps", "window", "epoch", "position"],
        [
            [b, ref.source, ref.episode_key, f"[{ref.start}, {ref.stop})", ref.window_id, ref.epoch, ref.position]
            for b, ref in enumerate(batch.refs)
        ],
    )
    names = [drawn["transform"] for drawn in draws[0]] if draws else []
    if names:
        say(f"augmented by {', '.join(names)}; --json lists what was drawn for each window")
    if png is not None:
        say(f"wrote {png}")
