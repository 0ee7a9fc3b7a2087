"""What the demo shows: a bar per phase, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from trajload.demo.compare import Comparison
    from trajload.demo.job import DemoResult

__all__ = ["Phases", "print_verdict"]


class Phases:
    """Shows one phase after the other: a bar that moves on a terminal, lines elsewhere."""

    def __init__(self, console: Console | None) -> None:
        self._console = console

    @contextmanager
    def phase(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Give a callback that takes how much of `total` is done."""
        if self._console is None:
            yield lambda done: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        begin = time.perf_counter()
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            with Progress(*columns, console=self._console, transient=True) as progress:
                task = progress.add_task(label, total=total)
                yield lambda done: progress.update(task, completed=done)
        else:
            yield self._quarters(label, total)
        self._line(f"{label}: {time.perf_counter() - begin:.1f} s")

    def _quarters(self, label: str, total: int) -> Callable[[int], None]:
        """Return a callback for logs and pipes, where a bar cannot move: a line at the start and at each quarter."""
        self._line(f"{label} ...")
        told = 0

        def update(done: int) -> None:
            nonlocal told
            quarter = 4 * done // max(total, 1)
            if told < quarter < 4:
                told = quarter
                self._line(f"  {done} of {total}")

        return update

    def _line(self, text: str) -> None:
        assert self._console is not None
        self._console.print(text, highlight=False, markup=False)


def print_verdict(console: Console, result: DemoResult) -> None:
    """Print what was compared, what it cost, and the one line that matters."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="Killed and resumed, against never interrupted", title_justify="left")
    for column in ("", "train_steps", "compared", "batches", "losses"):
        table.add_column(column, justify="left" if column in ("", "train_steps") else "right")
    for label, comparison in (("before the kill", result.before_kill), ("after the resume", result.after_resume)):
        table.add_row(label, f"[{comparison.start}, {comparison.stop})".replace("[", r"\["), *_cells(comparison))
    table.add_row("weights at the end", str(result.train_steps), "", "", _word(result.weights_equal))
    console.print(table)

    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("dataset", f"{result.num_episodes} episodes, {result.num_windows} windows of 16 steps")
    facts.add_row(
        "model", f"{result.num_parameters:,} parameters, loss {result.loss_first:.4f} → {result.loss_last:.4f}"
    )
    facts.add_row(
        "loader alone",
        f"{result.loader_windows_per_s:.0f} windows/s, {result.loader_pictures_per_s:.0f} frames/s (2 cameras and depth)",
    )
    facts.add_row(
        "while training",
        f"{result.windows_per_s:.0f} windows/s, {result.pictures_per_s:.0f} frames/s, {result.step_ms:.0f} ms a train_step",
    )
    facts.add_row(
        "consumer's wait",
        f"{result.wait_ms_per_step:.2f} ms a train_step ({result.wait_percent:.1f} %), first batch after {result.first_batch_s:.1f} s",
    )
    facts.add_row("one batch", result.contact_sheet)
    console.print(facts)
    lost = result.killed_after - result.resumed_from
    console.print(
        f"SIGKILL after {result.killed_after} train_steps, resumed from {result.resumed_from}: the {lost} steps since the "
        "checkpoint were made again, the rest made once.",
        highlight=False,
    )
    if result.ok:
        console.print("[bold green]EQUAL[/]: every batch and every loss is the uninterrupted run's, to the last bit.")
    else:
        console.print("[bold red]NOT EQUAL[/]: " + _first_difference(result))


def _cells(comparison: Comparison) -> tuple[str, str, str]:
    return (
        str(comparison.num_compared),
        _word(not comparison.batches_differ and not comparison.missing),
        _word(not comparison.losses_differ and not comparison.missing),
    )


def _word(equal: bool) -> str:
    return "[green]equal[/]" if equal else "[red]DIFFERENT[/]"


def _first_difference(result: DemoResult) -> str:
    for where, comparison in (("before the kill", result.before_kill), ("after the resume", result.after_resume)):
        for what, steps in (
            ("is missing or repeated", comparison.missing),
            ("has another batch", comparison.batches_differ),
            ("has another loss", comparison.losses_differ),
        ):
            if steps:
                return f"{where}, train_step {steps[0]} {what} ({len(steps)} such steps)."
        if comparison.num_compared == 0:
            return f"{where}, no train_step was there to compare."
    return "the weights at the end differ, though no batch and no loss does."
