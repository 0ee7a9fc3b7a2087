"""`trajload demo`: the main job, shown."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from trajload.cli.output import EXIT_FAULT, JsonFlag, print_json, progress_bar, say

__all__ = ["demo"]


def demo(
    out: Annotated[str, typer.Option("--out", "-o", help="Folder for everything that the demo makes.")] = "demo-out",
    episodes: Annotated[int | None, typer.Option(help="Episodes to generate; 24 by default.", min=1)] = None,
    train_steps: Annotated[int | None, typer.Option(help="Length of the training run; 300 by default.", min=12)] = None,
    seed: Annotated[int, typer.Option(help="Of data, order and weights.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller demo, for a first look.")] = False,
    only_data: Annotated[
        bool, typer.Option("--only-data", help="Generate the dataset in OUT, and stop there.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Generate a dataset, train a small world model on it, kill it with SIGKILL, resume, and compare every batch and loss.

    The dataset is a simulated 2-D scene: a pusher pushes a puck. Two cameras and actions at 30 Hz, depth at 15 Hz,
    proprioception at 100 Hz, reward, language, episodes of unequal length, a camera missing in some.

    Example: trajload demo

    Example: trajload demo --only-data --out my-dataset --episodes 8

    Exit codes: 0 the resumed run equals the uninterrupted one, 1 it differs, 2 wrong usage or an error.
    """
    if only_data:
        from trajload.demo import generate

        number = 24 if episodes is None else episodes
        with progress_bar("generating episodes") as progress:
            path = generate(Path(out), num_episodes=number, seed=seed, progress=progress)
        if json:
            print_json({"dataset": str(path), "num_episodes": number, "seed": seed})
        else:
            say(f"wrote {path}: look at it with 'trajload inspect {shlex.quote(str(path))}'")
        return
    from rich.console import Console

    from trajload.demo import job

    console = Console(stderr=True) if json else Console(file=sys.stdout)
    result = job.run(out, num_episodes=episodes, train_steps=train_steps, seed=seed, quick=quick, console=console)
    if json:
        print_json(result.to_json())
    if not result.ok:
        raise typer.Exit(EXIT_FAULT)
