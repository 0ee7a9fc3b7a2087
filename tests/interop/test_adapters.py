"""Batches in the words of TensorDict, Octo, TorchRL and LeRobot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import trajload as tl
from trajload.errors import ConfigError
from trajload.interop.lerobot import policy_batch
from trajload.interop.masks import octo_masks, step_mask, torchrl_masks

Make = Callable[..., tl.Loader]


@pytest.fixture(scope="module")
def padded(make_loader: Make) -> tl.Batch:
    """A batch with windows that reach beyond their episode's end, and one stream with a T of its own."""
    window = tl.Window(num_steps=8, pad="edge", delta_indices={"action": range(12)})
    with make_loader(window=window, global_batch_size=64) as loader:
        batch = loader.batch_at(0)
    assert batch["proprioception_is_pad"].any() and not batch["proprioception_is_pad"].all()
    return batch


def test_tensordict_has_the_same_keys_and_tensors(padded: tl.Batch, need: Callable[[str], None]) -> None:
    """Rows of it are rows of the batch, strings too."""
    need("tensordict")
    from trajload.interop.tensordict import to_tensordict

    made = to_tensordict(padded)
    assert made.batch_size == (64,)
    assert set(made.keys()) == {*padded, "train_step"}
    assert made["cam_front"].data_ptr() == padded["cam_front"].data_ptr()
    row = made[5]
    assert row["language"] == padded["language"][5] and row["source"] == padded["source"][5]
    assert torch.equal(row["action"], padded["action"][5])
    assert made["train_step"].tolist() == [0] * 64
    assert torch.stack([made[3], made[4]])["step_index"].tolist() == padded["step_index"][3:5].tolist()


def test_step_mask_is_true_inside_the_episode(padded: tl.Batch) -> None:
    """The steps where any stream has data; chunks of another length do not count."""
    assert torch.equal(step_mask(padded), ~padded["proprioception_is_pad"])
    alone = tl.Batch({k: padded[k] for k in padded if k.startswith(("action", "step_index"))}, train_step=0)
    with pytest.raises(ConfigError, match=r"no stream has the 8 steps of the window: got 'action'"):
        step_mask(alone)


def test_octo_masks_are_true_where_data_are_real(padded: tl.Batch) -> None:
    """In Octo's nesting: time steps, each observation, text, and each component of each action."""
    masks = octo_masks(padded)
    assert torch.equal(masks["observation"]["timestep_pad_mask"], ~padded["proprioception_is_pad"])
    assert torch.equal(masks["observation"]["pad_mask_dict"]["cam_front"], padded.valid_mask("cam_front"))
    assert "action" not in masks["observation"]["pad_mask_dict"]
    assert torch.equal(masks["task"]["pad_mask_dict"]["language"], ~padded["language_is_missing"])
    assert masks["action_pad_mask"].shape == padded["action"].shape
    assert torch.equal(masks["action_pad_mask"][..., 0], ~padded["action_is_pad"])


def test_torchrl_masks_and_flags(padded: tl.Batch) -> None:
    """An episode's last step is done, once, and either terminated or truncated."""
    masks = torchrl_masks(padded)
    assert torch.equal(masks["mask"], ~padded["proprioception_is_pad"])
    done, terminated, truncated = (masks["next", name] for name in ("done", "terminated", "truncated"))
    assert done.shape == (64, 8, 1)
    assert int(done.sum()) == int(padded["is_last"].sum()) > 0
    assert torch.equal(done, terminated | truncated) and not (terminated & truncated).any()
    assert not (done.squeeze(-1) & ~masks["mask"]).any()


def test_policy_batch_has_lerobots_keys_and_shapes(make_loader: Make) -> None:
    """ACT's: single observations without T, chunks of actions with T and `action_is_pad`, pictures in [0, 1]."""
    window = tl.Window(num_steps=1, pad="edge", delta_indices={"action": range(12), "proprioception": [-1, 0]})
    with make_loader(
        window=window, global_batch_size=64, streams=["cam_front", "proprioception", "action", "language"]
    ) as loader:
        batch = loader.batch_at(1)
    names = {"cam_front": "observation.images.front", "proprioception": "observation.state"}
    made = policy_batch(batch, rename=names, task="language")
    assert torch.equal(made["observation.images.front"], batch["cam_front"][:, 0].float() / 255)
    assert "observation.images.front_is_pad" not in made
    assert torch.equal(made["observation.state"], batch["proprioception"])
    assert torch.equal(made["observation.state_is_pad"], batch["proprioception_is_pad"])
    assert torch.equal(made["action"], batch["action"])
    assert torch.equal(made["action_is_pad"], batch["action_is_pad"]) and made["action_is_pad"].any()
    assert made["task"] == batch["language"]
    assert torch.equal(made["frame_index"], batch["step_index"][:, 0])
    torch.testing.assert_close(made["timestamp"], batch["timestamp_ns"][:, 0].double().div(1e9).float(), rtol=0, atol=0)
    assert policy_batch(batch, as_uint8=True)["cam_front"].dtype == torch.uint8


def test_policy_batch_keeps_a_chunk_of_one_and_finds_the_present_step(make_loader: Make) -> None:
    """`action` keeps its T; with history the present step is not the first column."""
    with make_loader(window=tl.Window(num_steps=3, history=2, pad="edge", delta_indices={"action": [0]})) as loader:
        batch = loader.batch_at(0)
    made = policy_batch(batch, history=2)
    assert made["action"].shape[:2] == (6, 1) and made["action_is_pad"].shape == (6, 1)
    assert torch.equal(made["frame_index"], batch["step_index"][:, 2])


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"rename": {"camera": "x"}}, r"stream 'camera' is not in this batch"),
        ({"task": "words"}, r"stream 'words' is not in this batch"),
        ({"rename": {"cam_front": "cam_side"}}, r"two streams are called 'cam_side'"),
        ({"history": 8}, r"history=8 is invalid: the window has 8 steps"),
    ],
)
def test_unusable_arguments_of_policy_batch_are_named(padded: tl.Batch, options: dict, pattern: str) -> None:
    """Before the policy meets a shape it did not expect."""
    with pytest.raises(ConfigError, match=pattern):
        policy_batch(padded, **options)
