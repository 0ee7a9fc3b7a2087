"""The frame of the command line: help that teaches, exit codes, errors as one line, JSON alone on stdout."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.cli import app
from trajload.cli.app import COMMANDS, GROUPS, PANELS
from trajload.cli.output import plural, size

# Rich, which draws help, takes ids of styles from the global generator of `random`.
pytestmark = pytest.mark.global_rng

Run = Callable[..., Any]


def test_commands_are_these() -> None:
    """The commands that the documentation names."""
    assert list(COMMANDS) == [
        "demo",
        "convert",
        "inspect",
        "verify",
        "doctor",
        "view",
        "replay",
        "order",
        "bench",
        "profile",
        "rebalance",
        "tune-encoding",
    ]
    assert {name: list(commands) for name, (_, commands) in GROUPS.items()} == {
        "checkpoints": ["ls", "verify", "diff", "pin", "unpin", "exposed", "gc", "export", "promote"]
    }


IN_GROUPS = [f"{group} {command}" for group, (_, commands) in GROUPS.items() for command in commands]


def test_every_command_stands_in_one_group_of_the_help() -> None:
    """One that does not would not be there at all."""
    assert sorted(name for names in PANELS.values() for name in names) == sorted([*COMMANDS, *GROUPS])


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPS, *IN_GROUPS])
def test_help_teaches(trajload: Run, command: str) -> None:
    """Each help says what the command does, shows an example of itself, and lists exit codes and --json."""
    done = trajload(*command.split(), "--help")
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.out).split())
    assert done.code == 0
    assert f"Example: trajload {command}" in text
    assert "Exit codes: 0" in text
    assert "--json" in text


def test_root_help_lists_every_command_with_an_example(trajload: Run) -> None:
    """`trajload --help` is the table of contents."""
    done = trajload("--help")
    assert done.code == 0 and "Example: trajload inspect my-dataset" in done.out
    assert all(re.search(rf"^│ {name} ", done.out, re.MULTILINE) for name in [*COMMANDS, *GROUPS])


def test_version_is_printed(trajload: Run) -> None:
    """`--version` prints the version alone."""
    assert trajload("--version").out == f"{tl.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["inspect"],
        ["inspect", "a", "b"],
        ["bench", "x", "--seconds", "soon"],
        ["view", "x", "--what"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_leaves_stdout_alone(trajload: Run, arguments: list[str]) -> None:
    """Usage errors go to stderr; `trajload inspect` alone shows its help."""
    done = trajload(*arguments)
    assert done.code == 2
    assert done.err if arguments != ["inspect"] else done.out + done.err


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("demo", "convert", "rebalance")])
def test_error_is_one_line_and_exit_code_2(trajload: Run, tmp_path: Path, command: str) -> None:
    """A dataset that is not there is said in one line, without a traceback."""
    done = trajload(command, tmp_path / "nowhere")
    assert done.code == 2 and done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("ConfigError: ") and "nowhere" in done.err


def test_error_under_json_is_an_object_on_stdout(trajload: Run, tmp_path: Path) -> None:
    """Machines get type, message and place."""
    done = trajload("inspect", tmp_path / "nowhere", "--json")
    assert done.code == 2
    assert done.json["error"]["type"] == "ConfigError"
    assert "nowhere" in done.json["error"]["message"]
    assert done.json["error"]["at"] == {}


def test_debug_adds_the_traceback_wherever_it_stands(trajload: Run, tmp_path: Path) -> None:
    """`--debug` last is as good as first."""
    for arguments in (["--debug", "inspect", tmp_path / "x"], ["inspect", tmp_path / "x", "--debug"]):
        done = trajload(*arguments)
        assert done.code == 2 and "Traceback (most recent call last)" in done.err


def test_bug_exits_with_2_and_asks_for_a_report(trajload: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception is not taken for a finding, which has code 1."""

    def broken(dataset: str) -> None:
        """Example: none."""
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(app.COMMANDS, "inspect", broken)
    done = trajload("inspect", "x")
    assert done.code == 2
    assert "ZeroDivisionError: by zero" in done.err and "This is a bug" in done.err


def test_interrupt_exits_with_130(trajload: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command as the shell expects."""

    def slow(dataset: str) -> None:
        """Example: none."""
        raise KeyboardInterrupt

    monkeypatch.setitem(app.COMMANDS, "inspect", slow)
    assert trajload("inspect", "x").code == 130


@pytest.mark.multiproc
@pytest.mark.parametrize(("redirect", "code"), [("> /dev/full", 2), (">&-", 0)], ids=["full disk", "closed"])
def test_output_that_cannot_be_written_is_no_traceback(demo_dataset: Path, redirect: str, code: int) -> None:
    """A full disk is an error in one line; output the shell closed is wanted by nobody."""
    done = subprocess.run(
        f'"{sys.executable}" -m trajload inspect "{demo_dataset}" --json {redirect}',
        shell=True, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stderr == ("OSError: [Errno 28] No space left on device\n" if code else "")


@pytest.mark.multiproc
def test_console_script_and_module_run(tmp_path: Path) -> None:
    """The installed command and `python -m trajload` are the same program."""
    for program in ([str(Path(sys.executable).parent / "trajload")], [sys.executable, "-m", "trajload"]):
        done = subprocess.run(
            [*program, "inspect", str(tmp_path / "no"), "--json"], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 2 and '"error"' in done.stdout


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_for_people(num_bytes: int, text: str) -> None:
    """Powers of 1024 with their proper units."""
    assert size(num_bytes) == text


def test_plurals_are_right() -> None:
    """One episode, two episodes, and thousands are set apart."""
    assert [plural(1, "episode"), plural(0, "step"), plural(12_345, "step")] == ["1 episode", "0 steps", "12,345 steps"]
