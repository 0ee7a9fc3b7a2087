"""Whether a saved component fits the live one: compared by name, shape and dtype before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from trajload.checkpoint.components import about, take
from trajload.checkpoint.saved import Saved
from trajload.checkpoint.tensor_file import TensorFacts
from trajload.checkpoint.tree import flatten

__all__ = ["Fit", "compare", "plain_keys"]

_PREFIXES = ("module.", "_orig_mod.", "model.")
"""What wrappers (DistributedDataParallel, torch.compile, a trainer) put before the names of a module."""


class Fit:
    """What was found: `problems` forbid to load, `notes` are differences that `strict=False` accepts."""

    def __init__(self, strict: bool) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._strict = strict

    def wrong(self, line: str) -> None:
        self.problems.append(line)

    def differs(self, line: str) -> None:
        """Note a difference that only a strict comparison refuses."""
        (self.problems if self._strict else self.notes).append(line)


def compare(name: str, live: Any, saved: Saved, names: Mapping[int, str], fit: Fit) -> None:
    """Add to `fit` how the live component differs from the saved one.

    Args:
        name: Of the component.
        live: The component.
        saved: As it was saved.
        names: Of parameters, from `parameter_names`.
        fit: What is found is added here.
    """
    here = about(name, live, names)
    kind = here["kind"]
    if saved.about.get("kind") != kind:
        hint = "; if it is sharded over ranks, a Checkpointer loads it" if saved.about.get("kind") == "callable" else ""
        fit.wrong(f"{name}: saved as {saved.about.get('kind')!r}, here {kind!r}{hint}")
        return
    if kind == "module":
        _compare_module(name, live, saved, fit)
    elif kind == "optimizer":
        _compare_class(name, here, saved, fit)
        _compare_parameters(name, here["parameters"], saved, fit)
        _compare_groups(name, live, saved, fit)
    elif kind == "stateful":
        _compare_class(name, here, saved, fit)
        if callable(check := getattr(live, "differing_streams", None)):
            for line in check(saved.state()):
                fit.differs(f"{name}: {line}")
        else:
            _compare_common(name, live, saved, fit)
    elif kind == "tree":
        if type(live).__name__ != saved.about["type"].rpartition(".")[2] and not isinstance(live, Tensor):
            fit.wrong(f"{name}: saved a {saved.about['type'].removeprefix('builtins.')}, here a {type(live).__name__}")
        else:
            _compare_common(name, live, saved, fit, is_tree=True)


def _compare_module(name: str, live: torch.nn.Module, saved: Saved, fit: Fit) -> None:
    state = live.state_dict()
    lazy = {key for key, value in state.items() if isinstance(value, UninitializedTensorMixin)}
    tensors, plain = flatten({key: value for key, value in state.items() if key not in lazy}, path=name)
    here = {key: TensorFacts.of(tensor) for key, tensor in tensors.items()}
    there = dict(saved.facts)
    # State that is no tensor (get_extra_state) has a key all the same.
    here_keys = {**here, **dict.fromkeys(plain_keys(plain))}
    there_keys = {**there, **dict.fromkeys(plain_keys(saved.plain))}
    missing = [key for key in here_keys if key not in there_keys]
    extra = [key for key in there_keys if key not in here_keys and key not in lazy]
    if missing and extra and (hint := _prefix_hint(missing, extra)):
        fit.wrong(f"{name}: {hint}")  # also where names may differ: nothing of it would be loaded
    for key in missing:
        fit.differs(f"{name}: {key!r} {_said(here_keys[key])} is not in the checkpoint")
    for key in extra:
        fit.differs(f"{name}: {key!r} {_said(there_keys[key])} of the checkpoint is not in this module")
    for key in lazy - set(there):
        fit.differs(f"{name}: {key!r} is not in the checkpoint")
    _compare_facts(name, here, there, fit.wrong)


def _said(facts: TensorFacts | None) -> str:
    return "(no tensor)" if facts is None else str(facts)


def plain_keys(plain: Any) -> list[str]:
    """Return the keys of a module's state whose values are no tensors."""
    while isinstance(plain, dict) and "$ordered" in plain:
        plain = plain["$ordered"]
        plain = plain[0] if isinstance(plain, list) else plain
    if not isinstance(plain, dict) or "$map" in plain:
        return []
    return [key for key, value in plain.items() if not (isinstance(value, dict) and "$tensor" in value)]


def _prefix_hint(missing: list[str], extra: list[str]) -> str | None:
    for prefix in _PREFIXES:
        if {prefix + key for key in missing} == set(extra):
            return f"all saved names begin with {prefix!r}, which this module's do not: it was saved wrapped. Give the inner module."
        if {prefix + key for key in extra} == set(missing):
            return f"all names here begin with {prefix!r}, the saved ones do not: give the inner module, without its wrapper."
    return None


def _compare_facts(
    name: str, here: Mapping[str, TensorFacts], there: Mapping[str, TensorFacts], report: Any, *, grows: bool = False
) -> None:
    for key, facts in here.items():
        if key not in there or there[key] == facts:
            continue
        if grows and 0 in facts.shape and there[key].dtype == facts.dtype:
            continue  # empty so far: nothing that another shape contradicts
        report(f"{name}: {key!r} saved {there[key]}, here {facts}")


def _compare_class(name: str, here: Mapping[str, Any], saved: Saved, fit: Fit) -> None:
    was, now = str(saved.about.get("type")), str(here["type"])
    # A class may move to another module; with another name it is another class, whose state means something else.
    # Our own loader and the DataLoader made of it have one state.
    ours = was.startswith("trajload.") and now.startswith("trajload.")
    if was.rpartition(".")[2] != now.rpartition(".")[2] and not ours:
        fit.differs(f"{name}: saved from a {was}, here a {now}")


def _compare_parameters(name: str, here: list[Any], saved: Saved, fit: Fit) -> None:
    there = saved.about.get("parameters")
    if not isinstance(there, list) or len(there) != len(here):
        count = len(there) if isinstance(there, list) else there
        fit.wrong(f"{name}: saved with {count} parameter groups, here {len(here)}")
        return
    for g, (old, new) in enumerate(zip(there, here, strict=True)):
        if len(old) != len(new):
            fit.wrong(f"{name}: parameter group {g} saved with {len(old)} parameters, here {len(new)}")
            continue
        for i, (was, now) in enumerate(zip(old, new, strict=True)):
            if was[0] is not None and now[0] is not None and was[0] != now[0]:
                fit.wrong(f"{name}: parameter {i} of group {g} saved for {was[0]!r}, here {now[0]!r}")
            elif now[2] is not None and was[2] is not None and was[1:] != now[1:]:
                fit.wrong(
                    f"{name}: parameter {i} of group {g} saved {was[1]} {was[2]}, here {now[1]} {now[2]}"
                    + (f" ({now[0]})" if now[0] else "")
                )


def _compare_groups(name: str, live: torch.optim.Optimizer, saved: Saved, fit: Fit) -> None:
    groups = saved.plain.get("param_groups") if isinstance(saved.plain, dict) else None
    if not isinstance(groups, list) or len(groups) != len(live.param_groups):
        return  # told by _compare_parameters, or an optimiser whose state has a form of its own
    for g, (old, new) in enumerate(zip(groups, live.param_groups, strict=True)):
        lacking, unknown = sorted(set(new) - set(old)), sorted(set(old) - set(new))
        if lacking or unknown:
            fit.differs(
                f"{name}: settings of parameter group {g} differ: "
                + "; ".join(f"{word} {keys}" for word, keys in (("not saved", lacking), ("not here", unknown)) if keys)
            )


def _compare_common(name: str, live: Any, saved: Saved, fit: Fit, *, is_tree: bool = False) -> None:
    """Compare tensors that both have: what a state holds besides is the business of its own load_state_dict."""
    try:
        tensors, _ = flatten(take(name, live), path=name)
    except Exception:
        if is_tree:
            raise
        return  # an object that has no state before it is given one decides for itself
    here = {key: TensorFacts.of(tensor) for key, tensor in tensors.items()}
    grows = not isinstance(live, (Tensor, np.ndarray))
    _compare_facts(name, here, saved.facts, fit.wrong if is_tree else fit.differs, grows=grows)
    if is_tree:
        for key in here:
            if key not in saved.facts:
                fit.differs(f"{name}: {key!r} {here[key]} is not in the checkpoint")
