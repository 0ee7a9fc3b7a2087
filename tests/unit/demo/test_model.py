"""The world model learns, and does not look at what a mask calls unreal."""

from __future__ import annotations

import pytest
import torch

from trajload.collate.batch import Batch
from trajload.demo.model import make_model, make_optimizer, weights_digest

B, T = 3, 6


@pytest.fixture
def values() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "cam_front": torch.randint(0, 256, (B, T, 3, 64, 64), dtype=torch.uint8, generator=generator),
        "action": torch.randn(B, T, 2, generator=generator),
        "proprioception": torch.randn(B, T, 4, generator=generator),
        "reward": torch.randn(B, T, generator=generator),
        "cam_front_is_pad": torch.zeros(B, T, dtype=torch.bool),
        "cam_front_is_missing": torch.zeros(B, dtype=torch.bool),
    }


def total(values: dict[str, torch.Tensor]) -> float:
    return make_model(0).losses(Batch(values, train_step=0)).total.item()


def test_padded_steps_and_missing_rows_count_nowhere(values) -> None:
    """Changing what a mask calls unreal changes nothing; changing what is real does."""
    values["cam_front_is_pad"][0, 4:] = True
    values["cam_front_is_missing"][2] = True
    before = total(values)
    values["cam_front"][0, 4:] = 0
    values["reward"][0, 4:] = 100.0
    values["action"][0, 5] = 100.0
    values["cam_front"][2] = 255
    values["action"][2] = 100.0
    assert total(values) == before
    values["cam_front"][0, 3] = 0
    assert total(values) != before


def test_actions_change_the_prediction_but_not_the_reconstruction(values) -> None:
    """The dynamics are conditioned on actions; the encoder does not see them."""
    before = make_model(0).losses(Batch(values, train_step=0))
    values["action"][:, 0] += 3.0
    after = make_model(0).losses(Batch(values, train_step=0))
    assert after.prediction.item() != before.prediction.item()
    assert after.reconstruction.item() == before.reconstruction.item()


def test_barcode_is_not_seen(values) -> None:
    """What stands in the top eighth of a picture does not reach the model."""
    before = total(values)
    values["cam_front"][..., :8, :] = 255
    assert total(values) == before


def test_training_lowers_the_loss(values) -> None:
    """Fifteen updates on one batch lower its loss."""
    model = make_model(0)
    optimizer = make_optimizer(model)
    batch = Batch(values, train_step=0)
    history = []
    for _ in range(15):
        loss = model.losses(batch).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    assert history[-1] < 0.95 * history[0]


def test_pictures_of_another_size_are_seen_alike() -> None:
    """A picture at double size gives the patches of the original; the fast path for 64 pixels is the exact average."""
    generator = torch.Generator().manual_seed(2)
    rgb_BTCHW = torch.randint(0, 256, (1, 2, 3, 64, 64), dtype=torch.uint8, generator=generator)
    model = make_model(0)
    expected = torch.nn.functional.avg_pool2d(rgb_BTCHW[0, :, :, 8:].float(), 2) / 255.0 - 0.5
    got = torch.nn.functional.pixel_shuffle(model.patches(rgb_BTCHW)[0], 4)
    torch.testing.assert_close(got, expected)
    doubled = rgb_BTCHW.repeat_interleave(2, dim=-1).repeat_interleave(2, dim=-2)
    torch.testing.assert_close(model.patches(doubled), model.patches(rgb_BTCHW))


def test_model_is_a_function_of_its_seed_and_draws_from_no_global_generator() -> None:
    """Equal seeds give equal weights, others do not, and torch's own generator is left alone."""
    before = torch.random.get_rng_state()
    first, again, other = make_model(3), make_model(3), make_model(4)
    assert weights_digest(first) == weights_digest(again) != weights_digest(other)
    assert torch.equal(before, torch.random.get_rng_state())
    assert 100_000 < sum(p.numel() for p in first.parameters()) < 300_000
