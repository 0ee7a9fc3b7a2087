"""How commands speak: JSON or tables on stdout, notes and progress on stderr. The only place that prints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from trajload.errors import ConfigError
from trajload.storage.atomic import TEMP_SUFFIX

__all__ = [
    "EXIT_ERROR",
    "EXIT_FAULT",
    "DatasetPath",
    "JsonFlag",
    "check_file_can_be_written",
    "note",
    "plural",
    "print_json",
    "progress_bar",
    "say",
    "size",
    "table",
]

EXIT_FAULT = 1
EXIT_ERROR = 2
_PIPED_WIDTH = 400

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
DatasetPath = Annotated[
    str, typer.Argument(metavar="DATASET", help="A native dataset or a LeRobot folder.", show_default=False)
]


def check_file_can_be_written(path: str | None, option: str) -> None:
    """Raise ConfigError if no file can stand at `path`: before the work whose result it is to hold."""
    if path is None:
        return
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise ConfigError(f"{option} {path!r} is a folder: expected the name of a file to write.")
    if not os.path.isdir(folder):
        raise ConfigError(f"{option} {path!r} cannot be written: the folder {folder!r} does not exist.")
    # Asked by trying: root may write everywhere by its rights, and still not in /proc or on a read-only disk.
    probe = os.path.abspath(path) + TEMP_SUFFIX
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(probe)
    except FileExistsError:
        return
    except OSError as err:
        raise ConfigError(
            f"{option} {path!r} cannot be written: the folder {folder!r} refuses it: {err.strerror}."
        ) from err


def say(text: str = "") -> None:
    """Print a line for people on stdout."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print a line on stderr, where it does not disturb output that is piped on."""
    sys.stderr.write(text + "\n")


def print_json(value: Any) -> None:
    """Print `value` as indented JSON on stdout; NumPy numbers and tuples included, NaN refused as invalid JSON."""
    sys.stdout.write(json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy scalars and arrays, tensors
        return _plain(value.tolist())
    if isinstance(value, float) and value - value != 0:  # NaN and infinities have no JSON
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table on stdout; as wide as the terminal, or as its contents when piped."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    out = Table(*columns, title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for row in rows:
        out.add_row(*("" if cell is None else str(cell) for cell in row))
    # Piped output is as wide as its contents need, since nothing there breaks lines.
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    Console(file=sys.stdout, markup=False, highlight=False, width=width).print(out)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give a callback `(done, total)` that draws a bar on stderr, or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)

        def update(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield update


def size(num_bytes: float) -> str:
    """Return a size for people, in powers of 1024: '3.4 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def plural(number: int, noun: str) -> str:
    """Return '1 episode', '2 episodes', '1,234 steps'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
