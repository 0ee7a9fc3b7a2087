"""What changes during training but is not in the checkpoint: looked for in the objects, and proven by going back.

Two ways. Looking finds modules, optimisers, generators, schedulers and loaders that no component saves. Going back proves the
rest: a snapshot is taken, a few steps are made, the snapshot is restored; whatever had changed and did not return is not
saved, be it a plain counter of an EMA, a schedule in a float, or a deque. What is saved returns, so there are no false alarms
over it. See docs/decisions/0128-audit-goes-back.md.
"""

from __future__ import annotations

import copy
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trajload.arguments import explains_calls
from trajload.checkpoint.audit_walk import GENERATORS, Graph, Place, generator_state, walk
from trajload.checkpoint.capture import snapshot
from trajload.checkpoint.restoring import restore_snapshot
from trajload.checkpoint.streams import Streams
from trajload.checkpoint.tensors import same_tensor_key
from trajload.errors import CheckpointError, ConfigError

__all__ = ["AuditReport", "Finding", "audit"]

_CURES = {
    "generator": "register it: Streams(name=generator)",
    "global generator": "save the streams of the process: rng=Streams()",
    "module": "make it a component, or name it in ignore= if it is the same in every run",
    "tensor": "make it a buffer, or a component",
    "stateful": "make it a component",
    "buffer": "save it if it changes: it was registered with persistent=False",
}
_CURE = "save it: a buffer, get_extra_state(), a dict among the components, or Component(get, set)"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a checkpoint would lose."""

    path: str
    kind: str
    """'int', 'float', 'deque', 'tensor', 'module', 'generator', ..."""
    what: str
    """How it was found, with values."""

    def __str__(self) -> str:
        return f"{self.path} ({self.kind}): {self.what}; {_CURES.get(self.kind, _CURE)}"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What `audit` found. `str()` tells it."""

    missing: tuple[Finding, ...]
    """What is state and not saved."""
    candidates: tuple[Finding, ...]
    """What may be state: it did not change, or no step was given to see whether it does."""
    opaque: tuple[str, ...]
    """Places that cannot be looked into."""
    looked_at: int
    """Values."""
    steps: int
    is_cut: bool
    """Whether there was more than could be looked at: give smaller roots."""

    @property
    def ok(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    def require(self) -> None:
        """Raise CheckpointError, with all findings, unless nothing is missing."""
        if self.missing:
            raise CheckpointError(str(self))

    def __str__(self) -> str:
        how = f"over {self.steps} steps" if self.steps else "without a step: plain numbers were not judged"
        count = len(self.missing)
        what = "1 thing that training changes is" if count == 1 else f"{count} things that training changes are"
        lines = [f"{what} not saved ({self.looked_at} values, {how})"]
        lines += [f"  - {finding}" for finding in self.missing]
        if self.candidates:
            lines.append("perhaps:")
            lines += [f"  - {finding}" for finding in self.candidates]
        if self.opaque:
            lines.append("cannot be looked into: " + ", ".join(self.opaque))
        if self.is_cut:
            lines.append("there was more than could be looked at: give smaller roots")
        return "\n".join(lines)


@explains_calls
def audit(
    roots: Any,
    state: Mapping[str, Any],
    *,
    step: Callable[[], Any] | None = None,
    steps: int = 3,
    ignore: Iterable[str] = (),
) -> AuditReport:
    """Return what a checkpoint of `state` would lose of a training.

    A test to be run once, apart from training: it makes steps, and loads the state back in between. At its end everything is
    where `steps` steps lead.

    Args:
        roots: Where to look: a mapping of names to objects, a list, or one object (a trainer). Components are looked into,
            too, and so is what `step` holds: its closure, and the globals that it and functions of the same script name.
        state: What is saved, as for `snapshot`, with the streams.
        step: Makes one training step. Without it only looking is done, and plain numbers are not judged.
        steps: How many to make.
        ignore: Paths, or patterns of them ('trainer.teacher*'), that need not be saved.

    Raises:
        ConfigError, CheckpointError: The state itself cannot be saved, or not be restored.
    """
    if step is not None and (not isinstance(steps, int) or steps < 1):
        raise ConfigError(f"steps is {steps!r}: expected a whole number of at least 1.")
    found = _Audit(_named(roots), state, step)
    missing, candidates = found.look()
    if step is not None:
        missing, candidates = found.go_back(step, steps, missing, candidates)
    patterns = tuple(ignore)

    def wanted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
        return tuple(f for f in _gathered(findings) if not any(_matches(f.path, pattern) for pattern in patterns))

    graph = found.graph
    return AuditReport(
        wanted(missing),
        wanted(candidates),
        tuple(graph.opaque),
        len(graph.leaves),
        steps if step is not None else 0,
        graph.is_cut,
    )


def _named(roots: Any) -> dict[str, Any]:
    if isinstance(roots, Mapping) and all(isinstance(name, str) for name in roots):
        return dict(roots)
    if isinstance(roots, (list, tuple)):
        return {f"roots[{i}]": root for i, root in enumerate(roots)}
    return {type(roots).__name__.lower(): roots}


def _matches(path: str, pattern: str) -> bool:
    return path == pattern or path.startswith((f"{pattern}.", f"{pattern}[")) or fnmatch.fnmatchcase(path, pattern)


class _Audit:
    def __init__(self, roots: Mapping[str, Any], state: Mapping[str, Any], step: Any) -> None:
        self._state = state
        self._roots: dict[str, Any] = {
            **roots,
            **{f"state[{name!r}]": value for name, value in state.items()},
            **({} if step is None else {"step": step}),
        }
        self.graph = self._walk()

    def _walk(self) -> Graph:
        graph = walk(self._roots)
        streams = walk({"": Streams().state_dict()}).leaves
        kept = {path: leaf._replace(kind="global generator", shown="state") for path, leaf in streams.items()}
        graph.leaves.update({f"rng{path}": leaf for path, leaf in kept.items()})
        return graph

    # ---- looking ----

    def look(self) -> tuple[list[Finding], list[Finding]]:
        """Return what is state by its nature and in no component: (missing, perhaps)."""
        self._memory = {
            key
            for taken in snapshot(self._state, copy=False).taken.values()
            for tensor in taken.tensors.values()
            if (key := same_tensor_key(tensor)) is not None
        }
        self._components = {id(value) for value in self._state.values()}
        registered = {id(g) for value in self._state.values() if isinstance(value, Streams) for g in value.registered()}
        missing: list[Finding] = []
        candidates: list[Finding] = []
        self._unproven: list[Place] = []
        inner: set[int] = set()  # modules inside a module that was told
        for place in self.graph.places:
            path, value, owners = place
            is_owned = any(owner in self._components for owner in owners)
            if isinstance(value, GENERATORS):
                if id(value) not in registered:
                    self._unproven.append(place)
                    (candidates if is_owned else missing).append(
                        Finding(path, "generator", f"a {type(value).__name__} that is not among the streams")
                    )
            elif isinstance(value, torch.nn.Module):
                if not any(owner in inner for owner in owners):
                    inner.add(id(value))
                    self._look_at_module(place, missing, candidates)
            elif id(value) not in self._components and not is_owned:
                kind = type(value)
                named = f"a {kind.__module__}.{kind.__qualname__} that is no component"
                missing.append(Finding(path, "stateful", named))
        return missing, candidates

    def _look_at_module(self, place: Place, missing: list[Finding], candidates: list[Finding]) -> None:
        path, module, _ = place
        lost = [name for name, tensor in _kept_tensors(module) if same_tensor_key(tensor) not in self._memory | {None}]
        if lost:
            self._unproven.append(place)
            total = sum(1 for _ in _kept_tensors(module))
            which = "none of its" if len(lost) == total else f"{len(lost)} ({', '.join(lost[:3])}) of its"
            missing.append(
                Finding(path, "module", f"{which} {total} tensors {'is' if len(lost) == total else 'are not'} saved")
            )
        for name, tensor in _passing_buffers(module):
            if same_tensor_key(tensor) not in self._memory | {None}:
                candidates.append(Finding(f"{path}.{name}", "buffer", "not persistent, so not saved"))

    # ---- going back ----

    def go_back(
        self, step: Callable[[], Any], steps: int, missing: list[Finding], candidates: list[Finding]
    ) -> tuple[list[Finding], list[Finding]]:
        """Return (missing, perhaps), now that it has been seen what changes and what returns."""
        begin = self.graph
        at_begin = snapshot(self._state)
        proven = self._disturb(at_begin)
        for _ in range(steps):
            step()
        moved, at_end = self._walk(), snapshot(self._state)
        restore_snapshot(self._state, at_begin)
        returned = self._walk()
        restore_snapshot(self._state, at_end)
        again = self._walk()
        lost = []
        changed = [
            path for path in {**begin.leaves, **moved.leaves} if begin.leaves.get(path) != moved.leaves.get(path)
        ]
        for path in changed:
            before, after = begin.leaves.get(path), moved.leaves.get(path)
            kind = (after or before).kind  # type: ignore[union-attr]
            if returned.leaves.get(path) != before and kind == "global generator":
                lost.append(Finding(path, kind, "drawn from, and not saved"))
            elif returned.leaves.get(path) != before:
                lost.append(Finding(path, kind, f"changed from {_shown(before)} to {_shown(after)} and is not saved"))
            elif again.leaves.get(path) != after:
                lost.append(Finding(path, kind, f"was {_shown(after)} when it was saved, and is not when it is loaded"))
        self.graph = moved
        return self._judged(missing, candidates, lost, proven, set(changed))

    def _judged(
        self,
        missing: list[Finding],
        candidates: list[Finding],
        lost: list[Finding],
        proven: dict[str, bool],
        changed: set[str],
    ) -> tuple[list[Finding], list[Finding]]:
        sure: list[Finding] = []
        perhaps: list[Finding] = []
        lost_paths = {finding.path for finding in lost}

        def inside(path: str, paths: Iterable[str]) -> bool:
            return any(other == path or other.startswith((f"{path}.", f"{path}[")) for other in paths)

        for finding in (*missing, *candidates):
            is_lost = proven.get(finding.path) is False or inside(finding.path, lost_paths)
            if is_lost:
                sure.append(finding)
            elif finding.path in proven or inside(finding.path, changed):
                continue  # it returned: something saves it
            elif finding.kind == "stateful" or finding in candidates:
                perhaps.append(finding)
        told = [finding.path for finding in sure]
        sure += [
            f for f in lost if not any(f.path == path or f.path.startswith((f"{path}.", f"{path}[")) for path in told)
        ]
        return sure, perhaps

    def _disturb(self, held: Any) -> dict[str, bool]:
        """Change what no component seems to save, load the state back, and return {path: whether it returned}.

        Proves it for what happens not to change within a few steps, such as a target network. Whatever did not return is
        given its value again.
        """
        before: list[tuple[str, Any, Any]] = []
        for place in self._unproven:
            if isinstance(place.value, torch.nn.Module):
                tensors = [
                    tensor for _, tensor in _kept_tensors(place.value) if same_tensor_key(tensor) not in self._memory
                ]
                before.append((place.path, tensors, [tensor.detach().clone() for tensor in tensors]))
                for tensor in tensors:
                    _flip(tensor)
            else:
                before.append((place.path, place.value, _copy_of(place.value)))
                _draw(place.value)
        proven = {}
        restore_snapshot(self._state, held)
        for path, value, old in before:
            if isinstance(old, list):
                pairs = list(zip(map(_bits, value), map(_bits, old), strict=True))
                proven[path] = all(torch.equal(now, was) for now, was in pairs)
                for now, was in pairs:
                    now.copy_(was)
            else:
                proven[path] = generator_state(value) == generator_state(old)
                Streams(it=value).put("it", Streams(it=old).state_dict()["own"]["it"])
        return proven


def _kept_tensors(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and persistent buffers of a module and those inside it."""
    found = [*module.named_parameters()]
    for prefix, part in module.named_modules():
        found += [
            (f"{prefix}.{name}".lstrip("."), tensor)
            for name, tensor in part._buffers.items()
            if tensor is not None and name not in part._non_persistent_buffers_set
        ]
    return [
        (name, tensor) for name, tensor in found if type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta
    ]


def _passing_buffers(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    return [
        (f"{prefix}.{name}".lstrip("."), tensor)
        for prefix, part in module.named_modules()
        for name, tensor in part._buffers.items()
        if tensor is not None and name in part._non_persistent_buffers_set
    ]


def _bits(tensor: Tensor) -> Tensor:
    """Return the elements as integers, in the same memory: NaNs compare, and every dtype can be changed."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    plain = tensor.detach()
    if plain.dtype.itemsize == 16:
        return torch.view_as_real(plain).view(torch.int64)
    return plain.view(kinds[plain.dtype.itemsize])


def _flip(tensor: Tensor) -> None:
    _bits(tensor).bitwise_xor_(1)


def _copy_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        same = torch.Generator(generator.device)
        same.set_state(generator.get_state())
        return same
    return copy.deepcopy(generator)


def _draw(generator: Any) -> None:
    if isinstance(generator, torch.Generator):
        torch.rand(64, generator=generator, device=generator.device)
    else:
        generator.random()


def _shown(leaf: Any) -> str:
    return "nothing" if leaf is None else leaf.shown


_INDEX = re.compile(r"\[(\d+|tensor \d+)\](?=$|[.\[])")


def _gathered(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, with those that differ in one index only told once."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((_INDEX.sub("[…]", finding.path), finding.kind), []).append(finding)
    return [
        group[0] if len(group) == 1 else Finding(path, kind, f"{len(group)} such, the first: {group[0].what}")
        for (path, kind), group in groups.items()
    ]
