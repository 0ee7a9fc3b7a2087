"""The table of commands, and what happens to errors."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from inspect import cleandoc
from typing import Annotated, Any

import typer

import trajload
from trajload.cli import (
    bench,
    checkpoints,
    convert,
    demo,
    doctor,
    inspect,
    order,
    profile,
    rebalance,
    replay,
    tune_encoding,
    verify,
    view,
)
from trajload.cli.output import EXIT_ERROR, note, print_json
from trajload.errors import TrajloadError

__all__ = ["COMMANDS", "GROUPS", "build_app", "run"]

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "convert": convert.convert,
    "inspect": inspect.inspect,
    "verify": verify.verify,
    "doctor": doctor.doctor,
    "view": view.view,
    "replay": replay.replay,
    "order": order.order,
    "bench": bench.bench,
    "profile": profile.profile,
    "rebalance": rebalance.rebalance,
    "tune-encoding": tune_encoding.tune_encoding,
}

GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "checkpoints": (checkpoints.HELP, checkpoints.COMMANDS),
}
"""Name → (help, its commands)."""

PANELS = {
    "Begin": ("demo",),
    "Look at a dataset, and check it": ("inspect", "doctor", "verify", "view"),
    "Write a dataset": ("convert", "rebalance", "tune-encoding"),
    "Look into a training": ("replay", "order", "checkpoints"),
    "Measure": ("bench", "profile"),
}
"""How `trajload --help` groups the commands."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(trajload.__version__)
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    """Exact, fast windows of recorded trajectories: look at a dataset, check it, convert it, measure it.

    New here? Run [bold]trajload demo[/bold]: it makes a small dataset, trains on it, is killed, and resumes exactly.

    Example: trajload inspect my-dataset

    Exit codes: 0 fine, 1 a fault was found in the data, 2 wrong usage or an error.
    """


def build_app() -> typer.Typer:
    """Return the Typer application with every command of the table."""
    app = typer.Typer(
        name="trajload",
        no_args_is_help=True,
        rich_markup_mode="rich",
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    panels = {name: panel for panel, names in PANELS.items() for name in names}
    for name in panels:
        if name in COMMANDS:
            command, is_asked = COMMANDS[name], name != "demo"
            about = _flow(command.__doc__)
            app.command(name, help=about, no_args_is_help=is_asked, rich_help_panel=panels[name])(command)
            continue
        text, commands = GROUPS[name]
        group = typer.Typer(name=name, help=_flow(text), no_args_is_help=True, rich_markup_mode="rich")
        for command_name, command in commands.items():
            group.command(command_name, help=_flow(command.__doc__), no_args_is_help=True)(command)
        app.add_typer(group, rich_help_panel=panels[name])
    return app


def _flow(docstring: str | None) -> str:
    """Return a docstring with one line per paragraph, so that help is broken where the terminal ends."""
    paragraphs = cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. Never raises, apart from bugs under --debug.

    Expected errors come out as one line on stderr; with --json also as `{"error": ...}` on stdout.
    """
    args, debug = _take_debug(argv)
    try:
        try:
            typer.main.get_command(build_app())(args=args, prog_name="trajload")
        finally:
            sys.stdout.flush()  # a full disk is told here, not by the interpreter as it ends
    except SystemExit as done:
        return _code(done.code)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: nothing to report to.
        sys.stderr.close()
        return 0
    except TrajloadError as err:
        return _report(err, args, debug)
    except OSError as err:
        return _report(err, args, debug)
    except Exception:
        traceback.print_exc()
        note(
            "This is a bug in trajload, or in a dataset in a way it does not know. Please report it with the lines above."
        )
        return EXIT_ERROR
    return 0


def _take_debug(argv: Sequence[str]) -> tuple[list[str], bool]:
    """Return the arguments without --debug, and whether it was there (up to a bare `--`)."""
    end = list(argv).index("--") if "--" in argv else len(argv)
    return [a for i, a in enumerate(argv) if a != "--debug" or i > end], "--debug" in argv[:end]


def _code(code: Any) -> int:
    return code if isinstance(code, int) else 0 if code is None else EXIT_ERROR


def _report(err: Exception, args: Sequence[str], debug: bool) -> int:
    if debug:
        traceback.print_exception(err)
    else:
        note(f"{type(err).__name__}: {err}")
    if "--json" in args:
        error: dict[str, Any] = {"type": type(err).__name__, "message": str(err)}
        if isinstance(err, TrajloadError):
            error["message"] = err.message
            error["at"] = {k: v for k, v in asdict(err.at).items() if v is not None}
        try:
            print_json({"error": error})
            sys.stdout.flush()
        except OSError:
            # The error may be that stdout cannot be written; at its end the interpreter would try once more.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_ERROR
