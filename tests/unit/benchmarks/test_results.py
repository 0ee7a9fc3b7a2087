"""Result files: every script that takes --json writes one, with the command, the commit and the machine, in one way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def written(path: Path, name: str) -> dict[str, Any]:
    """Return a result file, once it is seen to say where its figures come from."""
    result: dict[str, Any] = json.loads(path.read_text())
    assert list(result)[:4] == ["benchmark", "command", "commit", "machine"] and result["benchmark"] == name
    assert result["command"].startswith(f"python benchmarks/{name}.py --json {path}")
    assert {"cpu", "cores", "memory_gib", "python", "kernel", "packages"} <= set(result["machine"])
    return result


def test_each_script_with_json_writes_through_one_function(benchmarks_on_path: Path) -> None:
    """Which puts the figures under benchmarks/results where no other place is named."""
    takes_json = [p for p in benchmarks_on_path.glob("*.py") if re.search(r'"--json"', p.read_text())]
    assert len(takes_json) > 12
    assert [path.name for path in takes_json if "write_result(" not in path.read_text()] == []
    assert [path.name for path in takes_json if re.search(r"json\.write_text\(", path.read_text())] == []


def test_commit_names_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that differ from it are told, results are not; outside a repository there is none."""
    import _common

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", "-C", tmp_path, *who, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    monkeypatch.setattr(_common, "__file__", str(tmp_path / "benchmarks" / "_common.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert _common.commit() is None
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    code, result = tmp_path / "code.py", tmp_path / "benchmarks" / "results" / "one.json"
    code.write_text("1\n"), result.write_text("1\n")
    git("init", "-q"), git("add", "."), git("commit", "-q", "-m", "one")
    result.write_text("2\n")
    assert _common.commit() == git("rev-parse", "--short=12", "HEAD")
    code.write_text("2\n")
    assert _common.commit() == git("rev-parse", "--short=12", "HEAD") + "-dirty"


def test_planning_writes_the_figures_of_every_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On small tables, and in this process: a bar that is missed is written down all the same."""
    import planning

    monkeypatch.setattr(planning, "run_case", lambda _, *args: planning.run_one(planning.parser().parse_args(args)))
    out = tmp_path / "planning.json"
    sizes = ["--episodes", "100", "--repeats", "1", "--largest", "1000"]
    monkeypatch.setattr(sys, "argv", ["planning.py", "--json", str(out), *sizes])
    status = planning.main()
    result = written(out, "planning")
    assert set(result["seek"]) == set(result["batch"]) == set(planning.ORDERS)
    for order in planning.ORDERS:
        assert 0 < result["seek"][order]["cold_ms"]["min"] <= result["seek"][order]["cold_ms"]["max"]
        assert result["batch"][order]["num_windows"] == result["seek"][order]["num_windows"] > 10**6
    assert result["number"]["num_windows"] == pytest.approx(10**9, rel=0.05)
    assert status == (0 if result["passed"] else 1)


def test_open_100k_writes_the_figures_of_fresh_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty episodes instead of 100,000."""
    import open_100k

    out = tmp_path / "open_100k.json"
    monkeypatch.setattr(sys, "argv", ["open_100k.py", "--json", str(out), "--episodes", "20", "--repeats", "1"])
    status = open_100k.main()
    result = written(out, "open_100k")
    assert (result["num_episodes"], result["num_shards"]) == (20, 1) and 20 * 25 <= result["num_steps"] <= 20 * 75
    for case in ("warm", "cold"):
        assert result[case]["open_s"]["median"] > 0 and result[case]["peak_rss_mb"]["max"] > 0
    assert status == (0 if result["passed"] else 1)
