"""A training state that is saved and put into newly built objects goes on exactly."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trajload.checkpoint.capture import snapshot
from trajload.checkpoint.components import Component
from trajload.checkpoint.restoring import restore, restore_snapshot
from trajload.checkpoint.store import Store
from trajload.checkpoint.streams import Streams
from trajload.errors import CheckpointError

pytestmark = [pytest.mark.global_rng, pytest.mark.usefixtures("one_thread")]


class Ema(nn.Module):
    """A moving average with a plain counter, saved by get_extra_state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.average = nn.Linear(model[0].in_features, model[0].out_features)  # type: ignore[index,union-attr]
        self.updates = 0

    def get_extra_state(self) -> Any:
        return {"updates": self.updates}

    def set_extra_state(self, state: Any) -> None:
        self.updates = state["updates"]

    def follow(self, model: nn.Module) -> None:
        self.updates += 1
        with torch.no_grad():
            self.average.weight.lerp_(model[0].weight, 1 / (1 + self.updates))  # type: ignore[index]


def training(seed: int, make: Any = torch.optim.AdamW, **settings: Any) -> dict[str, Any]:
    """Build a training with every kind of state there is."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
    optim = make(model.parameters(), **({"lr": 0.01} | settings))
    counters = {"updates": 0, "returns": deque(maxlen=3), 7: {"best": float("inf"), "seen": {(1, 2)}}}
    epsilon = {"value": 1.0}
    return {
        "model": model,
        "target": torch.optim.swa_utils.AveragedModel(model),
        "ema": Ema(model),
        "optim": optim,
        "schedule": torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optim, 3),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
        "counters": counters,
        "norm": {"mean": torch.zeros(6), "count": np.zeros(2, np.int64)},
        "epsilon": Component(lambda: epsilon["value"], lambda saved: epsilon.update(value=saved)),
        "rng": Streams(noise=np.random.Generator(np.random.PCG64(7)), dither=torch.Generator().manual_seed(seed)),
    }


def train(state: dict[str, Any], steps: int) -> list[float]:
    """Train on drawn data and return the losses."""
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 6) + torch.from_numpy(state["rng"]._own["noise"].standard_normal((16, 6))).float()
        x += torch.rand(16, 6, generator=state["rng"]._own["dither"]) + float(np.random.standard_normal())  # noqa: NPY002
        loss = state["model"](x).square().mean() * state["epsilon"].get()
        state["optim"].zero_grad()
        state["scaler"].scale(loss).backward()
        state["scaler"].step(state["optim"])
        state["scaler"].update()
        state["schedule"].step()
        state["target"].update_parameters(state["model"])
        state["ema"].follow(state["model"])
        state["counters"]["updates"] += 1
        state["counters"]["returns"].append(loss.item())
        state["norm"]["mean"].lerp_(x.mean(0), 0.1)
        state["norm"]["count"] += 16
        state["epsilon"].set(state["epsilon"].get() * 0.9)
        losses.append(loss.item())
    return losses


OPTIMISERS = {
    "adamw": (torch.optim.AdamW, {}),
    "adam-amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adam-tensor-lr": (torch.optim.Adam, {"lr": torch.tensor(0.01)}),
    "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "asgd": (torch.optim.ASGD, {}),
    "rprop": (torch.optim.Rprop, {}),
    "adafactor": (torch.optim.Adafactor, {}),
}


@pytest.mark.parametrize("make, settings", OPTIMISERS.values(), ids=OPTIMISERS)
def test_training_goes_on_exactly(store: Store, kept: Any, make: Any, settings: dict[str, Any]) -> None:
    """Losses, every tensor, every counter and the next draws equal those of the run that was not interrupted."""
    first = training(1, make, **settings)
    train(first, 4)
    part = kept.keep(store, first)
    expected = train(first, 5)
    second = training(2, make, **settings)
    assert restore(second, part) == []
    assert train(second, 5) == expected
    for name in ("model", "target", "ema", "optim", "schedule", "scaler", "rng"):
        kept.assert_same(first[name].state_dict(), second[name].state_dict(), name)
    kept.assert_same(first["counters"], second["counters"])
    kept.assert_same(first["norm"], second["norm"])
    assert first["epsilon"].get() == second["epsilon"].get()


lr = torch.optim.lr_scheduler
SCHEDULES: tuple[Any, ...] = (
    lambda optim: lr.StepLR(optim, 2),
    lambda optim: lr.MultiStepLR(optim, [2, 2, 5]),
    lambda optim: lr.ExponentialLR(optim, 0.9),
    lambda optim: lr.LinearLR(optim),
    lambda optim: lr.ConstantLR(optim),
    lambda optim: lr.PolynomialLR(optim),
    lambda optim: lr.CosineAnnealingLR(optim, 9),
    lambda optim: lr.OneCycleLR(optim, 0.1, total_steps=50),
    lambda optim: lr.CyclicLR(optim, 0.001, 0.1, cycle_momentum=False),
    lambda optim: lr.ReduceLROnPlateau(optim, patience=1),
    lambda optim: lr.LambdaLR(optim, lambda epoch: 0.9**epoch),
    lambda optim: lr.SequentialLR(optim, [lr.ConstantLR(optim), lr.CosineAnnealingLR(optim, 5)], [3]),
    lambda optim: lr.ChainedScheduler([lr.ConstantLR(optim), lr.ExponentialLR(optim, 0.9)]),
    lambda optim: torch.optim.swa_utils.SWALR(optim, 0.05),
)


@pytest.mark.parametrize("index", range(len(SCHEDULES)))
def test_learning_rate_schedules_go_on(store: Store, kept: Any, index: int) -> None:
    """Every schedule of torch gives the rates it would have given."""

    def build() -> tuple[torch.optim.Optimizer, Any]:
        optim = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
        return optim, SCHEDULES[index](optim)

    def rates(optim: torch.optim.Optimizer, schedule: Any) -> list[float]:
        found = []
        for step in range(4):
            optim.step()
            schedule.step(*([float(step)] if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
            found.append(optim.param_groups[0]["lr"])
        return found

    optim, schedule = build()
    rates(optim, schedule)
    part = kept.keep(store, {"optim": optim, "schedule": schedule})
    expected = rates(optim, schedule)
    again, schedule_again = build()
    restore({"optim": again, "schedule": schedule_again}, part)
    assert rates(again, schedule_again) == expected


def test_plain_trees_are_restored_in_place(store: Store, kept: Any) -> None:
    """Whoever holds a dict, list, tensor, array, deque or set of the tree sees the saved values."""
    inner, tensor, array, items = {"n": 1}, torch.zeros(3), np.zeros(2), [torch.ones(2), 5]
    tree = {"inner": inner, "tensor": tensor, "array": array, "items": items, "seen": {1}, "last": deque([1], 4)}
    part = kept.keep(store, {"tree": tree})
    held = dict(tree)
    inner["n"], items[1] = 9, 6
    inner["new"] = 1
    tensor += 1
    array += 1
    items.append(3)
    tree["seen"].add(2)  # type: ignore[union-attr]
    tree["last"].append(7)  # type: ignore[union-attr]
    restore({"tree": tree}, part)
    assert all(tree[name] is held[name] for name in held)
    assert (inner, items[1:], tree["seen"], list(tree["last"])) == ({"n": 1}, [5], {1}, [1])  # type: ignore[call-overload]
    assert tensor.tolist() == [0, 0, 0] and array.tolist() == [0, 0]


def test_moments_keep_the_dtype_they_were_saved_with(store: Store, kept: Any) -> None:
    """An optimiser that keeps float32 moments of bfloat16 parameters gets float32 moments back; torch alone would cast."""

    class Wide(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p].setdefault("moment", torch.zeros(p.shape)).add_(0.1)
                    self.state[p]["nested"] = {"list": [torch.full((), 1 / 3, dtype=torch.float64)]}

    first, second = (Wide([nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))], lr=0.1) for _ in range(2))
    for _ in range(3):
        first.step()
    restore({"optim": second}, kept.keep(store, {"optim": first}))
    kept.assert_same(first.state_dict(), second.state_dict())


def test_tied_weights_stay_tied_and_are_stored_once(store: Store, kept: Any) -> None:
    """Two names of one parameter cost one tensor, and are one parameter after loading."""

    def build() -> nn.ModuleDict:
        model = nn.ModuleDict({"embed": nn.Embedding(100, 32), "head": nn.Linear(32, 100, bias=False)})
        model["head"].weight = model["embed"].weight
        return model

    first, second = build(), build()
    held = snapshot({"model": first})
    assert held.copied_bytes == 100 * 32 * 4
    assert held.files()[0].bytes < 100 * 32 * 4 + 600
    restore({"model": second}, kept.keep(store, {"model": first}))
    assert second["head"].weight is second["embed"].weight
    assert torch.equal(first["head"].weight, second["head"].weight)


def test_several_models_and_optimisers_with_a_shared_encoder_go_on(store: Store, kept: Any) -> None:
    """Actor, critic and slow critic, two optimisers with their own groups, one encoder that both models hold."""

    def build(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        encoder = nn.Linear(4, 4)
        actor, critic = (nn.Sequential(encoder, nn.Linear(4, size)) for size in (2, 1))
        slow = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        actor_optim = torch.optim.AdamW(
            [{"params": encoder.parameters(), "lr": 1e-4}, {"params": actor[1].parameters()}]
        )
        optim = {"actor_optim": actor_optim, "critic_optim": torch.optim.SGD(critic[1].parameters(), 0.1, momentum=0.9)}
        return {"actor": actor, "critic": critic, "slow": slow, **optim, "rng": Streams()}

    def learn(state: dict[str, Any]) -> list[float]:
        losses = []
        for _ in range(3):
            x = torch.randn(5, 4)
            loss = (state["actor"](x).sum(1) + state["critic"](x)[:, 0] - state["slow"](x)[:, 0]).square().mean()
            for optim in (state["actor_optim"], state["critic_optim"]):
                optim.zero_grad()
            loss.backward()
            for optim in (state["actor_optim"], state["critic_optim"]):
                optim.step()
            with torch.no_grad():
                for mine, theirs in zip(state["slow"].parameters(), state["critic"].parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
            losses.append(loss.item())
        return losses

    first, second = build(1), build(2)
    learn(first)
    part = kept.keep(store, first)
    expected = learn(first)
    restore(second, part)
    assert second["actor"][0] is second["critic"][0]
    assert learn(second) == expected


def test_an_object_without_a_state_of_its_own_yet_is_loaded(store: Store, kept: Any) -> None:
    """Some objects have nothing to give before they are given something."""

    class Late:
        value: Any = None

        def state_dict(self) -> dict[str, Any]:
            return {"t": self.value + 0}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["t"]

    first, second = Late(), Late()
    first.value = torch.ones(2)
    restore({"late": second}, kept.keep(store, {"late": first}))
    assert torch.equal(second.value, first.value)


def test_parametrised_and_normed_modules_go_on(store: Store, kept: Any) -> None:
    """Parametrisations, spectral norm and its buffers come back."""

    def build() -> nn.Module:
        model = nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
            nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
            nn.LSTM(4, 4),
        )
        return model

    first, second = build(), build()
    for _ in range(3):
        first[:3](torch.randn(2, 4))  # type: ignore[index]  # spectral norm's vectors move
    restore({"model": second}, kept.keep(store, {"model": first}))
    kept.assert_same(dict(first.state_dict()), dict(second.state_dict()))


def test_lazy_modules_take_their_shapes_from_the_checkpoint(store: Store, kept: Any) -> None:
    """A lazy module that has not seen a batch can be loaded; saving one is refused."""
    first, second = nn.LazyLinear(3), nn.LazyLinear(3)
    with pytest.raises(CheckpointError, match=r"model\.weight has no shape yet"):
        snapshot({"model": first})
    first(torch.zeros(1, 5))
    restore({"model": second}, kept.keep(store, {"model": first}))
    assert torch.equal(first.weight, second.weight)


def test_a_snapshot_is_put_back_without_a_file() -> None:
    """What a snapshot holds can be restored, and restoring does not hand out the snapshot's own memory."""
    state = training(3)
    train(state, 2)
    held = snapshot(state)
    expected = train(state, 3)
    for _ in range(2):
        restore_snapshot(state, held)
        assert train(state, 3) == expected


def test_a_state_comes_back_from_an_object_store(kept: Any) -> None:
    """The same files behind another kind of store; what is loaded is verified."""
    obstore = pytest.importorskip("obstore.store")
    from trajload.checkpoint.object_store import ObjectStore

    first, second = training(1), training(2)
    train(first, 2)
    with ObjectStore(obstore.MemoryStore()) as store:
        part = kept.keep(store, first)
        expected = train(first, 2)
        restore(second, part)
    assert train(second, 2) == expected


def test_lbfgs_with_its_lists_of_tensors_goes_on(store: Store, kept: Any) -> None:
    """An optimiser whose state is lists of directions, numbers and None."""

    def build() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        weight = nn.Parameter(torch.tensor([3.0, -2.0]))
        return weight, torch.optim.LBFGS([weight], lr=0.1, max_iter=3, history_size=2)

    def learn(weight: nn.Parameter, optim: torch.optim.Optimizer) -> list[float]:
        def closure() -> torch.Tensor:
            optim.zero_grad()
            loss = (weight**4).sum() + weight.prod()
            loss.backward()
            return loss

        return [optim.step(closure).item() for _ in range(3)]  # type: ignore[attr-defined,arg-type]

    first, second = build(), build()
    learn(*first)
    part = kept.keep(store, {"weight": first[0], "optim": first[1]})
    expected = learn(*first)
    restore({"weight": second[0], "optim": second[1]}, part)
    assert learn(*second) == expected
    kept.assert_same(first[1].state_dict(), second[1].state_dict())


def test_sparse_gradients_and_masks_go_on(store: Store, kept: Any) -> None:
    """SparseAdam's moments, and a module whose buffers are bool and float64."""

    def build() -> dict[str, Any]:
        table = nn.Embedding(9, 2, sparse=True)
        table.register_buffer("seen", torch.zeros(9, dtype=torch.bool))
        table.register_buffer("sum", torch.zeros((), dtype=torch.float64))
        return {"table": table, "optim": torch.optim.SparseAdam(table.parameters())}

    def learn(state: dict[str, Any]) -> None:
        for i in range(3):
            state["table"](torch.tensor([i, i + 1])).square().sum().backward()
            state["optim"].step()
            state["optim"].zero_grad()
            state["table"].seen[i] = True
            state["table"].sum += 1 / 3

    first, second = build(), build()
    learn(first)
    part = kept.keep(store, first)
    learn(first)
    restore(second, part)
    learn(second)
    kept.assert_same(first["optim"].state_dict(), second["optim"].state_dict())
    kept.assert_same(dict(first["table"].state_dict()), dict(second["table"].state_dict()))
