"""`trajload view`: a contact sheet of an episode."""

from __future__ import annotations

from typing import Annotated

import typer

from trajload.cli.output import DatasetPath, JsonFlag, print_json, say

__all__ = ["view"]


def view(
    dataset: DatasetPath,
    episode: Annotated[int, typer.Option("--episode", "-e", help="Position of the episode; -1 is the last.")] = 0,
    start: Annotated[int, typer.Option(help="First step.", min=0)] = 0,
    num_steps: Annotated[int | None, typer.Option(help="Steps from there on; to the end by default.", min=1)] = None,
    max_steps: Annotated[int, typer.Option(help="Steps drawn, evenly spaced.", min=1)] = 16,
    stream: Annotated[
        list[str] | None, typer.Option("--stream", "-s", help="Draw this stream only; repeatable.")
    ] = None,
    out: Annotated[str, typer.Option("--out", "-o", help="PNG file to write.")] = "episode.png",
    tile: Annotated[int, typer.Option(help="Longer side of a drawn frame in pixels.", min=16)] = 96,
    json: JsonFlag = False,
) -> None:
    """Draw a stretch of an episode as one PNG: cameras as strips, signals as plots, steps below.

    Depth is drawn in false colours. Streams on their own clock show the row nearest in time. To see what a training
    step was given, with its padding and masks, use 'trajload replay'.

    Example: trajload view my-dataset --episode 3 --out episode-3.png

    Example: trajload view my-dataset -e 3 --start 40 --num-steps 16 -s cam_front -s action

    Exit codes: 0 written, 2 the episode does not exist or cannot be read.
    """
    from trajload.sources.open import open as open_dataset
    from trajload.view import episode_sheet

    opened = open_dataset(dataset, missing="skip")
    index = opened.check_episode(episode)
    stop = None if num_steps is None else start + num_steps
    path = episode_sheet(
        opened, index, out, start=start, stop=stop, max_steps=max_steps, streams=stream or None, tile=tile
    )
    if json:
        key, total = opened.episode_key(index), int(opened.num_steps_E[index])
        stop = total if stop is None else stop
        print_json({"png": str(path), "episode_index": index, "episode_key": key, "start": start, "stop": stop})
    else:
        say(f"wrote {path}")
