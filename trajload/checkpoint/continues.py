"""Whether a training really continues: it is killed, resumed and killed again, and compared with a run that never was.

whole   ─────────────────────────────────────────────▶ every step, every leaf of the state
killed  ────✗
           resumed ─────✗
                      resumed, saved at once ✗
                                   resumed ──────────▶ the same, bit by bit?
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajload.arguments import explains_calls
from trajload.checkpoint.lives import Life, read_log
from trajload.checkpoint.nursery import Nursery
from trajload.checkpoint.targets import target_of
from trajload.checkpoint.trainee import Spec, Training
from trajload.errors import ConfigError
from trajload.rng import key_rng
from trajload.types import PathLikeStr

if TYPE_CHECKING:
    from trajload.checkpoint.entries import Commit

__all__ = ["Continuation", "assert_continues"]

_NOT_SEEDED = (
    "\nNothing had been resumed here: `make` gives another training each time. Seed all that it draws from and that is saved: "
    "random.seed(0), np.random.seed(0), torch.manual_seed(0)."
)
_MOST_NAMES = 12


@dataclass(slots=True)
class Continuation:
    """What `assert_continues` has seen."""

    steps: int
    leaves: int
    """Of the state, compared after every step."""
    kills: int = 0
    resumed: list[int | None] = field(default_factory=list)
    """Step that each start went on after; None for a fresh start."""
    steps_compared: int = 0
    """Steps that were made again after a kill count again."""


@explains_calls
def assert_continues(
    make: Callable[..., Training],
    *,
    steps: int = 24,
    every: int = 4,
    kills: int = 3,
    mode: str = "sync",
    ranks: int = 1,
    anywhere: bool = False,
    arguments: Mapping[str, Any] | None = None,
    folder: PathLikeStr | None = None,
    seed: int = 0,
    timeout_s: float = 300.0,
    nursery: Nursery | None = None,
) -> Continuation:
    """Assert that a training which is killed and resumed does bit by bit what one does that is not.

    Two runs are made in processes of their own. One is left alone; the other is sent SIGKILL again and again and goes on
    from its newest checkpoint, sometimes saving again at once, which shows what survives only one resume. After every
    step all that it returned is compared, and every parameter, optimiser field, buffer, counter, random stream and loader
    cursor, and the next batch.

    Args:
        make: A function at the top level of a file, returning a `Training`; it is called once in each process. It seeds what it
            and `rng` draw from, so that two runs begin alike.
        steps: Updates of each run.
        every: Updates between saves.
        kills: How often the second run is killed.
        mode: 'sync' or 'async'.
        ranks: Processes of each run, with torch.distributed on gloo; each starts with RANK and WORLD_SIZE set.
        anywhere: Kill at any time, also before anything new was saved. By default each life saves something first, so that
            every resume is from a checkpoint of the life before it.
        arguments: JSON values for `make`.
        folder: For stores and logs, which then stay; a temporary one by default.
        seed: Of the times at which it is killed.
        timeout_s: Without a step for so long a run counts as hanging.
        nursery: Starts the processes; given to several calls it imports torch once for all of them.

    Raises:
        AssertionError: The runs differ; step, and leaves by name, are listed. Or an acknowledged checkpoint was lost.
        StageFailedError: A training process failed by itself, or hangs.
        ConfigError: A bad argument.
    """
    least = 2 * every if anywhere else (kills + 1) * (every + 2)
    if kills < 1 or every < 1 or ranks < 1 or steps < least:
        raise ConfigError(
            f"steps={steps}, every={every}, kills={kills}, ranks={ranks} do not fit: expected each from 1 on, and at least "
            f"{least} steps, so that something can be saved between kills."
        )
    if mode not in ("sync", "async"):
        raise ConfigError(f"mode={mode!r} is invalid: expected 'sync' or 'async'.")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary if folder is None else folder)
        shutil.rmtree(place / "runs", ignore_errors=True)
        (place / "runs").mkdir(parents=True)
        spec = Spec(
            target=target_of(make),
            arguments=dict(arguments or {}),
            store=str(place / "runs" / "whole"),
            log=str(place / "runs" / "whole.jsonl"),
            steps=steps,
            every=every,
            mode=mode,
            ranks=ranks,
            timeout_s=timeout_s,
        )
        with contextlib.ExitStack() as stack:
            starter = nursery or stack.enter_context(Nursery())
            return _Runs(starter, spec, place / "runs", kills, anywhere, seed).compare()


class _Runs:
    def __init__(self, nursery: Nursery, spec: Spec, folder: Path, kills: int, anywhere: bool, seed: int) -> None:
        self._nursery = nursery
        self._spec, self._folder, self._kills, self._anywhere = spec, folder, kills, anywhere
        self._timeout_s = spec.timeout_s
        self._random = key_rng(seed, "ckpt-kills")
        self._expected: list[dict[int, dict[str, Any]]] = []
        self._duration_s = 0.0

    def compare(self) -> Continuation:
        with Life(self._nursery, self._spec, self._folder, "whole") as life:
            life.watch(lambda lines: any("step" in line for line in lines), self._timeout_s)
            begin = time.monotonic()
            life.watch(lambda lines: False, self._timeout_s)
            self._duration_s = time.monotonic() - begin
        self._expected = [_steps(read_log(path)) for path in _logs(self._spec)]
        for rank, found in enumerate(self._expected):
            if list(found) != list(range(1, self._spec.steps + 1)):
                raise AssertionError(f"the run that was left alone made steps {list(found)} on rank {rank}.")
        result = Continuation(self._spec.steps, len(self._expected[0][1]["leaves"]))
        acknowledged: int | None = None
        for number in range(self._kills + 1):
            acknowledged = self._live(number, acknowledged, result)
        return result

    def _live(self, number: int, acknowledged: int | None, result: Continuation) -> int | None:
        """Start the second run once more; return the step of the newest checkpoint that it was told of."""
        is_last = number == self._kills
        spec = replace(
            self._spec,
            store=str(self._folder / "killed"),
            log=str(self._folder / f"killed-{number:03d}.jsonl"),
            # No life may come to the end before the last one: a process that is there by then waits for its death.
            stop_at=None if is_last else (number + 1) * (self._spec.steps - 1) // (self._kills + 1),
            save_at_once=number % 2 == 0,
        )
        with Life(self._nursery, spec, self._folder, f"killed-{number:03d}") as life:
            if is_last:
                life.watch(lambda lines: False, self._timeout_s)
            else:
                self._let_it_live(life)
                life.kill(first=int(self._random.integers(spec.ranks)), between_s=float(self._random.uniform(0, 0.02)))
                result.kills += 1
        for rank, path in enumerate(_logs(spec)):
            self._check(number, rank, read_log(path), acknowledged, result, is_last)
        saved = [line["saved"] for line in read_log(Path(spec.log)) if line.get("saved") is not None]
        return max([*saved, *([] if acknowledged is None else [acknowledged])], default=None)

    def _let_it_live(self, life: Life) -> None:
        """Wait for the moment of the kill: after something was saved, or anywhere; and a random time more."""
        pace_s = self._duration_s / self._spec.steps
        if self._anywhere:
            end = time.monotonic() + float(self._random.uniform(0, 1)) * self._duration_s / 2
            life.watch(bool, self._timeout_s)
            life.watch(lambda lines: _has(lines, "stopped") or time.monotonic() > end, self._timeout_s)
            return
        life.watch(bool, self._timeout_s)
        report = life.lines()[0]["report"]
        if report["step"] is not None and life.spec.save_at_once:
            self._wait_for_commit(life, lambda commit: commit.seq > report["seq"])
            return  # the next life goes on from what was saved of a resumed state, before it made a step
        self._wait_for_commit(life, lambda commit: commit.step > (report["step"] or 0))
        end = time.monotonic() + float(self._random.uniform(0, 1.5)) * pace_s * self._spec.every
        life.watch(lambda lines: _has(lines, "stopped") or time.monotonic() > end, self._timeout_s)

    def _wait_for_commit(self, life: Life, is_wanted: Callable[[Commit], bool]) -> None:
        from trajload.checkpoint.store import Store

        store = Store(life.spec.store, create=False)
        life.watch(lambda lines: any(map(is_wanted, store.commits())), self._timeout_s)

    def _check(
        self,
        number: int,
        rank: int,
        lines: list[dict[str, Any]],
        acknowledged: int | None,
        result: Continuation,
        is_last: bool,
    ) -> None:
        if not lines:
            return  # it was killed before it had come up
        resumed = lines[0]["resumed"]
        who = f"start {number + 1}" + (f", rank {rank}" if self._spec.ranks > 1 else "")
        if rank == 0:
            result.resumed.append(resumed)
        if (resumed or 0) < (acknowledged or 0):
            raise AssertionError(
                f"{who} went on after step {resumed}: the checkpoint of step {acknowledged} was saved and is lost."
            )
        if number and not self._anywhere and resumed is None:
            raise AssertionError(f"{who} began anew: {lines[0]['report']['why']}. Expected to go on from a checkpoint.")
        expected = self._expected[rank]
        if resumed is not None:
            _compare(f"{who}, resumed after step {resumed}", lines[0]["leaves"], expected[resumed]["leaves"])
        made = _steps(lines)
        first = (resumed or 0) + 1
        if list(made) != list(range(first, first + len(made))) or (is_last and self._spec.steps not in made):
            raise AssertionError(f"{who} made steps {list(made)}, expected them from {first} on.")
        for step, line in made.items():
            where = f"{who}, step {step} (resumed after {resumed})"
            hint = _NOT_SEEDED if resumed is None else ""
            if line["value"] != expected[step]["value"]:
                raise AssertionError(f"{where} returned {line['value']!r}, expected {expected[step]['value']!r}.{hint}")
            _compare(where, line["leaves"], expected[step]["leaves"], hint)
            result.steps_compared += 1


def _has(lines: list[dict[str, Any]], key: str) -> bool:
    return any(key in line for line in lines)


def _steps(lines: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {line["step"]: line for line in lines if "step" in line}


def _logs(spec: Spec) -> list[Path]:
    return [Path(spec.log if rank == 0 else f"{spec.log}.{rank}") for rank in range(spec.ranks)]


def _compare(where: str, found: Mapping[str, str], expected: Mapping[str, str], hint: str = "") -> None:
    """Raise AssertionError with the names of the leaves that differ."""
    if found == expected:
        return
    wrong = [
        f"{path}: got {found.get(path, 'nothing')}, expected {expected.get(path, 'nothing')}"
        for path in sorted({*found, *expected})
        if found.get(path) != expected.get(path)
    ]
    more = f"\n  and {len(wrong) - _MOST_NAMES} more" if len(wrong) > _MOST_NAMES else ""
    raise AssertionError(f"{where}: the state differs in\n  " + "\n  ".join(wrong[:_MOST_NAMES]) + more + hint)
