"""What the examples say of their masks, resets and ensembles is true of their code."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import trajload as tl

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.global_rng  # layers of torch are initialised from its global generator


@pytest.fixture
def rssm() -> Iterator[ModuleType]:
    yield load("rssm_world_model")


@pytest.fixture
def act() -> Iterator[ModuleType]:
    yield load("act_policy")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    torch.manual_seed(0)
    return module


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def last_window(dataset: Path, **arguments: object) -> tl.Batch:
    """Return the windows that reach furthest beyond the end of the last episode."""
    with tl.Loader(dataset, global_batch_size=4, order="sequential", num_workers=0, **arguments) as loader:
        return loader.batch_at(loader.num_windows // 4 - 1)


def test_rssm_loss_does_not_see_padding(rssm: ModuleType, demo_dataset: Path) -> None:
    """Other pictures, actions and rewards beyond the episode's end give the same loss; real ones another."""
    streams = {"cam_front": tl.Image(size=(32, 32)), "action": None, "reward": None}
    batch = last_window(demo_dataset, window=tl.Window(num_steps=8, pad="edge"), streams=streams)
    model = rssm.RSSM(action_size=2)
    expected = {name: value.item() for name, value in rssm.losses(model, batch, noise(), 0).items()}
    is_pad = batch["reward_is_pad"]
    assert is_pad.any() and not is_pad.all()

    def disturbed(mask: torch.Tensor) -> dict[str, float]:
        other = batch.copy()
        other["cam_front"] = torch.where(mask[..., None, None, None], 255 - batch["cam_front"], batch["cam_front"])
        other["action"] = torch.where(mask[..., None], batch["action"] + 9.0, batch["action"])
        other["reward"] = torch.where(mask, batch["reward"] + 9.0, batch["reward"])
        return {name: value.item() for name, value in rssm.losses(model, other, noise(), 0).items()}

    assert disturbed(is_pad) == expected
    real = disturbed(~is_pad)
    assert all(real[name] != expected[name] for name in ("loss", "picture", "reward"))  # kl may be all free nats


def test_rssm_state_is_reset_where_an_episode_begins(rssm: ModuleType) -> None:
    """From a step with is_first on, nothing before it matters; without it, all does."""
    model = rssm.RSSM(action_size=2)
    x, action = torch.rand(2, 6, 3, 32, 32, generator=noise(1)), torch.randn(2, 6, 2, generator=noise(2))
    is_first = torch.zeros(2, 6, dtype=torch.bool)
    is_first[0, 3] = True
    other_x, other_action = x.clone(), action.clone()
    other_x[:, :3] = 1.0 - x[:, :3]
    other_action[:, :3] += 1.0
    with torch.no_grad():
        h = model(x, action, is_first, noise())[0]
        other_h = model(other_x, other_action, is_first, noise())[0]
    assert torch.equal(h[0, 3:], other_h[0, 3:])
    assert not torch.allclose(h[1, 3:], other_h[1, 3:], atol=1e-3)


def test_rssm_imagination_looks_at_no_picture(rssm: ModuleType) -> None:
    """From step `seen` on features follow from actions alone."""
    model = rssm.RSSM(action_size=2)
    x, action = torch.rand(2, 6, 3, 32, 32, generator=noise(1)), torch.randn(2, 6, 2, generator=noise(2))
    other_x = x.clone()
    other_x[:, 3:] = 0.0
    is_first = torch.zeros(2, 6, dtype=torch.bool)
    with torch.no_grad():
        assert torch.equal(*(model(v, action, is_first, noise(), seen=3)[0] for v in (x, other_x)))
        assert not torch.equal(*(model(v, action, is_first, noise(), seen=4)[0] for v in (x, other_x)))


def test_act_loss_does_not_see_padded_actions(act: ModuleType, demo_dataset: Path) -> None:
    """Other actions where `action_is_pad` give the same loss, in the style and in the error; real ones another."""
    streams = {"cam_front": tl.Image(size=(32, 32)), "proprioception": tl.Signal(), "action": tl.Signal()}
    batch = last_window(demo_dataset, window=act.WINDOW, streams=streams)
    is_pad = batch["action_is_pad"]
    assert is_pad.any() and not is_pad.all()
    model = act.ACT(2, 4)
    expected = {name: value.item() for name, value in act.losses(model, batch, noise(), 0).items()}
    for mask, is_equal in ((is_pad, True), (~is_pad, False)):
        other = batch.copy()
        other["action"] = torch.where(mask[..., None], batch["action"] + 9.0, batch["action"])
        got = {name: value.item() for name, value in act.losses(model, other, noise(), 0).items()}
        assert all((got[name] == expected[name]) is is_equal for name in expected)


def test_act_ensemble_is_the_weighted_mean_of_all_that_was_said_of_a_step(act: ModuleType) -> None:
    """By hand for three steps and chunks of two; and chunks that agree are left as they are."""
    chunks = torch.tensor([[[1.0], [2.0]], [[4.0], [8.0]], [[16.0], [32.0]]])  # (T, K, D)
    old, new = 1.0, 2.718281828**-0.5
    expected = torch.tensor([[1.0], [(2.0 * old + 4.0 * new) / (old + new)], [(8.0 * old + 16.0 * new) / (old + new)]])
    torch.testing.assert_close(act.ensemble(chunks, decay=0.5), expected)
    taken = torch.randn(9, 2, generator=noise())
    agreeing = torch.cat([taken, torch.zeros(3, 2)]).unfold(0, 4, 1).transpose(1, 2)
    torch.testing.assert_close(act.ensemble(agreeing), taken)
