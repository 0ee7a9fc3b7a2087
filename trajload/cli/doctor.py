"""`trajload doctor`: does the data make sense?"""

from __future__ import annotations

from typing import Annotated

import typer

from trajload.cli.output import EXIT_FAULT, DatasetPath, JsonFlag, plural, print_json, progress_bar, say

__all__ = ["doctor"]


def doctor(
    dataset: DatasetPath,
    max_episodes: Annotated[
        int | None, typer.Option(help="Look at this many episodes, spread evenly; all by default.", min=1)
    ] = None,
    decode: Annotated[bool, typer.Option(help="Decode the first and last picture of every camera and episode.")] = True,
    deep: Annotated[bool, typer.Option("--deep", help="Decode one picture of every group of pictures.")] = False,
    num_steps: Annotated[int, typer.Option(help="Steps of the windows that will be drawn.", min=1)] = 16,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as faults, too.")] = False,
    json: JsonFlag = False,
) -> None:
    """Check that the data makes sense, and say what to do where it does not.

    'verify' asks whether bytes are as they were written; 'doctor' asks whether they can be right: frames promised and
    there, pictures that decode, timestamps that rise without gaps and cover all steps, NaN, streams that never move,
    wild outliers, keyframes so far apart that random windows are slow, cameras declared but absent, empty text.

    Example: trajload doctor my-dataset

    Example: trajload doctor data/pusht --max-episodes 50 --json

    Exit codes: 0 no fault, 1 errors were found (with --strict also warnings), 2 the dataset cannot be opened.
    """
    from trajload.doctor import examine

    with progress_bar("examining episodes") as progress:
        report = examine(
            dataset, max_episodes=max_episodes, decode=decode, deep=deep, num_steps=num_steps, progress=progress
        )
    if json:
        print_json(report.to_json())
    else:
        say(
            f"{report.dataset} ({report.kind}): looked at {report.num_examined} of {plural(report.num_episodes, 'episode')}, "
            f"decoded {plural(report.num_frames_decoded, 'picture')}"
        )
        for finding in report.findings:
            say(f"- {finding}")
        say(f"{plural(report.num_errors, 'error')}, {plural(report.num_warnings, 'warning')}")
    if not report.is_healthy or (strict and report.num_warnings):
        raise typer.Exit(EXIT_FAULT)
