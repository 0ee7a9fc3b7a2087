"""The audit finds what training changes and no component saves, and is silent about what is saved."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trajload.checkpoint.auditing import AuditReport, audit
from trajload.checkpoint.components import Component
from trajload.checkpoint.streams import Streams
from trajload.errors import CheckpointError, ConfigError

pytestmark = [pytest.mark.global_rng, pytest.mark.usefixtures("one_thread")]


class Ema(nn.Module):
    """A moving average whose decay depends on a plain counter: in no state_dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.average = copy.deepcopy(model)
        self.num_updates = 0

    def follow(self, model: nn.Module) -> None:
        self.num_updates += 1
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 1 / (1 + self.num_updates))


class CountingEma(Ema):
    """The same, done right."""

    def get_extra_state(self) -> Any:
        return self.num_updates

    def set_extra_state(self, state: Any) -> None:
        self.num_updates = state


class Trainer:
    """Holds state of every kind."""

    def __init__(self, ema: type[Ema] = Ema) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))
        self.target = copy.deepcopy(self.model)
        self.ema = ema(self.model)
        self.optim = torch.optim.AdamW(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optim, 2)
        self.scaler = torch.amp.GradScaler("cpu")
        self.noise = np.random.Generator(np.random.PCG64(3))
        self.epsilon = 1.0
        self.returns: deque[float] = deque(maxlen=3)
        self.stats = {"mean": torch.zeros(4), "counts": {"seen": 0}}
        self.width, self.name, self.betas = 4, "run", (0.9, 0.95)

    def step(self) -> None:
        x = torch.randn(8, 4) + torch.from_numpy(self.noise.standard_normal((8, 4))).float()
        loss = self.model(x).square().mean() * self.epsilon
        self.optim.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optim)
        self.scaler.update()
        self.schedule.step()
        self.ema.follow(self.model)
        self.epsilon *= 0.9
        self.returns.append(loss.item())
        self.stats["mean"].lerp_(x.mean(0), 0.1)  # type: ignore[attr-defined]
        self.stats["counts"]["seen"] += 8  # type: ignore[index,operator]

    def saved(self) -> dict[str, Any]:
        """Everything that is state."""
        return {
            "model": self.model,
            "target": self.target,
            "ema": self.ema,
            "optim": self.optim,
            "schedule": self.schedule,
            "scaler": self.scaler,
            "returns": self.returns,
            "stats": self.stats,
            "epsilon": Component(lambda: self.epsilon, lambda saved: setattr(self, "epsilon", saved)),
            "rng": Streams(noise=self.noise),
        }


def found(report: AuditReport) -> dict[str, str]:
    return {finding.path: finding.kind for finding in report.missing}


def test_nothing_is_missing_where_all_is_saved() -> None:
    """Counters, schedules, deques, moments, streams, buffers that return when the state is loaded are no findings."""
    trainer = Trainer(CountingEma)
    report = audit({"trainer": trainer}, trainer.saved(), step=trainer.step)
    assert (report.ok, report.missing, report.candidates, report.opaque, report.is_cut) == (True, (), (), (), False)
    assert report.looked_at > 50
    report.require()


WAYS: dict[str, tuple[str | None, dict[str, str]]] = {
    "ema-counter": (None, {"state['ema'].num_updates": "int"}),
    "float": ("epsilon", {"trainer.epsilon": "float"}),
    "deque": ("returns", {"trainer.returns": "deque"}),
    "target": ("target", {"trainer.target": "module"}),
    "moments": ("optim", {"trainer.optim": "stateful"}),
    "schedule": ("schedule", {"trainer.schedule": "stateful"}),
    "scaler": ("scaler", {"trainer.scaler": "stateful"}),
    "tree": ("stats", {"trainer.stats.mean": "tensor", "trainer.stats.counts.seen": "int"}),
    "model": ("model", {"trainer.model": "module"}),
}


@pytest.mark.parametrize("left_out, expected", WAYS.values(), ids=WAYS)
def test_what_is_left_out_is_named(left_out: str | None, expected: dict[str, str]) -> None:
    """Each thing that is not saved is the one finding; the message has path, values and what to do."""
    trainer = Trainer(Ema if left_out is None else CountingEma)
    state = {name: value for name, value in trainer.saved().items() if name != left_out}
    report = audit({"trainer": trainer}, state, step=trainer.step)
    assert found(report) == expected
    with pytest.raises(CheckpointError, match=r"training changes (is|are) not saved"):
        report.require()


def test_findings_say_what_changed_and_what_to_do() -> None:
    """The text is one that can be acted on."""
    trainer = Trainer()
    state = {name: value for name, value in trainer.saved().items() if name not in ("target",)}
    text = str(audit({"trainer": trainer}, state, step=trainer.step))
    assert "state['ema'].num_updates (int): changed from 0 to 3 and is not saved; save it: a buffer" in text
    assert "trainer.target (module): none of its 7 tensors is saved; make it a component" in text


def test_generators_that_are_not_registered_are_named() -> None:
    """Also one that was not drawn from within the steps; global ones if nobody saves them."""
    trainer = Trainer(CountingEma)
    trainer.idle = [torch.Generator(), random.Random(3), np.random.RandomState(3)]  # type: ignore[attr-defined]
    before = [repr(g.getstate()) for g in trainer.idle[1:2]]  # type: ignore[attr-defined]
    state = trainer.saved()
    del state["rng"]
    report = audit({"trainer": trainer}, state, step=trainer.step)
    assert found(report) == {
        "trainer.noise": "generator",
        "trainer.idle[…]": "generator",
        "rng.torch": "global generator",
    }
    assert [repr(g.getstate()) for g in trainer.idle[1:2]] == before  # type: ignore[attr-defined]


def test_generators_that_a_component_saves_are_no_findings() -> None:
    """What some object of the user's saves by itself returns, and that proves it."""

    class Policy:
        def __init__(self) -> None:
            self.noise, self.weight = np.random.Generator(np.random.PCG64(1)), torch.zeros(2)

        def state_dict(self) -> dict[str, Any]:
            return {"noise": self.noise.bit_generator.state, "weight": self.weight.clone()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.noise.bit_generator.state = state["noise"]
            self.weight = state["weight"]

    policy = Policy()
    report = audit([policy], {"policy": policy}, step=lambda: policy.weight.add_(policy.noise.random()))
    assert (report.missing, report.candidates) == ((), ())


def test_a_target_network_saved_as_a_copy_is_no_finding() -> None:
    """It does not change within a few steps, so it is changed on purpose, looked at, and given back."""
    target = nn.Linear(2, 2)
    before = target.weight.detach().clone()
    part = Component(lambda: {k: v.clone() for k, v in target.state_dict().items()}, target.load_state_dict)
    model = nn.Linear(2, 2)
    assert audit({"target": target}, {"target": part, "model": model}, step=lambda: None).ok
    report = audit({"target": target}, {"model": model}, step=lambda: None)
    assert found(report) == {"target": "module"}
    assert torch.equal(target.weight, before)


def test_without_a_step_only_looking_is_done() -> None:
    """Nothing is changed; modules, optimisers and generators in no component are told, plain numbers are not judged."""
    trainer = Trainer()
    state = {name: value for name, value in trainer.saved().items() if name in ("model", "ema")}
    version = trainer.model[0].weight._version
    report = audit({"trainer": trainer}, state)
    assert set(found(report)) == {f"trainer.{name}" for name in ("target", "optim", "schedule", "scaler", "noise")}
    assert (report.steps, trainer.model[0].weight._version) == (0, version)
    assert "plain numbers were not judged" in str(report)


def test_closures_and_globals_of_a_script_are_looked_into() -> None:
    """A counter in a closure, and a dict that the script's functions use as a global, are state too."""
    count, model = 0, nn.Linear(2, 2)

    def bump() -> None:
        _COUNTS["global"] += 1

    def step() -> None:
        nonlocal count
        count += 1
        bump()

    report = audit({}, {"model": model}, step=step)
    assert found(report) == {"step.count": "int", "global _COUNTS.global": "int"}


_COUNTS = {"global": 0}


class _Exploration:
    """Its rate is of the class, as in a script that keeps its settings so."""

    rate, history, num_updates = 1.0, [0.5], 0

    @classmethod
    def decay(cls) -> None:
        cls.rate *= 0.9
        cls.history.append(cls.rate)


num_updates = [nn.Linear(1, 1)]
"""A global that is called as an attribute of others is."""


def test_values_of_classes_are_looked_into() -> None:
    """Also of one that no object is of; what is an attribute is not taken for a global of the same name."""

    class Child(_Exploration):
        num_updates = 3

    def step() -> None:
        _Exploration.decay()
        child.num_updates += 1

    child = Child()
    report = audit({}, {"model": nn.Linear(2, 2)}, step=step)
    expected = {
        "class _Exploration.rate": "float",
        "class _Exploration.history": "list",
        "step.child.num_updates": "int",
    }
    assert found(report) == expected


def test_paths_can_be_ignored() -> None:
    """A frozen teacher, the time of the last step: what the user knows to be no state."""
    trainer = Trainer()
    state = {name: value for name, value in trainer.saved().items() if name not in ("target", "returns")}
    report = audit(
        {"trainer": trainer}, state, step=trainer.step, ignore=["trainer.target", "*.num_updates", "trainer.ret*"]
    )
    assert report.ok


def test_many_of_a_kind_are_told_once() -> None:
    """A hundred lost tensors are one line."""
    held = {"history": [torch.zeros(1) for _ in range(100)]}

    def step() -> None:
        for tensor in held["history"]:
            tensor.add_(1)

    report = audit(held, {"model": nn.Linear(1, 1)}, step=step)
    assert [(f.path, f.what[:8]) for f in report.missing] == [("history[…]", "100 such")]


def test_state_that_loads_wrongly_is_named() -> None:
    """A load_state_dict that forgets a field is as bad as a state_dict that does."""

    class Forgetful:
        n = 0

        def __init__(self) -> None:
            self.n = 0

        def state_dict(self) -> dict[str, Any]:
            return {"n": self.n}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.n = 0

    thing = Forgetful()
    report = audit([thing], {"thing": thing}, step=lambda: setattr(thing, "n", thing.n + 1))
    assert [f.what for f in report.missing] == ["was 3 when it was saved, and is not when it is loaded"]


def test_a_non_persistent_buffer_is_told_and_a_changing_one_is_missing() -> None:
    """A table made anew in every process is no state; a running value is."""

    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(3.0), persistent=False)
            self.register_buffer("running", torch.zeros(1), persistent=False)

    model = Running()
    report = audit({"model": model}, {"m": model}, step=lambda: model.running.add_(1))
    assert found(report) == {"model.running": "buffer"}
    assert [f.path for f in report.candidates] == ["model.table"]


def test_the_loader_counts_as_saved_when_it_is_a_component(demo_dataset: Path) -> None:
    """Its caches and statistics are no findings; its cursor is one where it is left out."""
    import trajload as tl

    loader = tl.Loader(demo_dataset, window=tl.Window(num_steps=4), global_batch_size=2, seed=1, streams=["action"])
    model = nn.Linear(2, 2)

    def step() -> None:
        loader.batch_at(loader.train_step)
        loader.seek(loader.train_step + 1)

    with loader:
        assert audit({"loader": loader}, {"loader": loader, "model": model}, step=step).missing == ()
        assert loader.train_step == 3
        assert found(audit({"data": {"loader": loader}}, {"model": model}, step=step)) == {"data.loader": "stateful"}


class Awkward:
    """Holds what refuses to be looked at, and iterators."""

    def __init__(self, count: int) -> None:
        self.lock, self.itself, self.count = threading.Lock(), self, itertools.count(count)
        self.lazy, self.sparse = nn.LazyLinear(2), torch.eye(2).to_sparse()
        self.batches = iter(torch.utils.data.DataLoader([1, 2, 3]))  # type: ignore[arg-type,var-annotated]
        self.huge, self.text, self.nan = 10**5000, "\ud800", float("nan")
        self.objects = {object(): 1, 2: np.array([None, {}])}

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")


def test_awkward_objects_are_looked_at_as_far_as_they_can_be() -> None:
    """Cycles, locks, lazy parameters, attributes that raise: listed where they hide something, and never an error."""
    thing = Awkward(3)
    report = audit({"thing": thing}, {"model": nn.Linear(1, 1)}, step=lambda: next(thing.count))
    assert found(report)["thing.count"] == "counter"
    hidden = {text.split(" (")[0] for text in report.opaque}
    assert hidden == {"thing.sparse", "thing.lazy.weight", "thing.lazy.bias", "thing.batches"}


def test_steps_must_be_a_number() -> None:
    """Zero steps prove nothing."""
    with pytest.raises(ConfigError, match=r"steps is 0"):
        audit([], {}, step=lambda: None, steps=0)
