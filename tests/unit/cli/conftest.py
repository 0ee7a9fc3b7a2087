"""Running a command as the shell would, and reading what it said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import rich.style  # noqa: F401 - draws from `random` as it is imported: not in a test

from trajload.cli.app import run


@dataclass(frozen=True)
class Outcome:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as one JSON value; a test fails here if anything else stands there."""
        return json.loads(self.out)


@pytest.fixture
def trajload(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Return a function that runs `trajload <arguments>` in this process."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        return Outcome(code, *capsys.readouterr())

    return call
