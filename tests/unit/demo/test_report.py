"""What people see: a bar on a terminal, lines in a log, nothing where nothing is wanted."""

from __future__ import annotations

import io

from rich.console import Console

from trajload.demo.report import Phases


def shown(console: Console | None, stream: io.StringIO) -> str:
    with Phases(console).phase("generate [things]", 8) as advance:
        for done in range(1, 9):
            advance(done)
    return stream.getvalue()


def test_log_gets_a_line_at_each_end_and_quarter() -> None:
    """Without a terminal each quarter is one line, and markup-like text is left as it is."""
    stream = io.StringIO()
    lines = shown(Console(file=stream, width=80), stream).splitlines()
    assert lines[:-1] == ["generate [things] ...", "  2 of 8", "  4 of 8", "  6 of 8"]
    assert lines[-1].startswith("generate [things]: ") and lines[-1].endswith(" s")


def test_terminal_gets_a_bar_and_the_time() -> None:
    """On a terminal the bar counts, is taken away, and the time stays."""
    stream = io.StringIO()
    text = shown(Console(file=stream, width=80, force_terminal=True), stream)
    assert "8/8" in text and "generate [things]" in text
    assert text.rstrip().endswith(" s")


def test_no_console_shows_nothing() -> None:
    """The programmatic run is silent."""
    assert shown(None, io.StringIO()) == ""
