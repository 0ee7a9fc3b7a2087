"""Checkpoints come back bit for bit, appear whole or not at all, and notice damage."""

from __future__ import annotations

import json

import pytest
import torch

from trajload.demo.checkpoint import latest, load_checkpoint, restore, save_checkpoint, weights_digest
from trajload.demo.model import make_model, make_optimizer
from trajload.errors import ResumeError


def trained(seed: int, num_updates: int):
    """A model after a few updates, so that the optimiser has moments."""
    model = make_model(seed)
    optimizer = make_optimizer(model)
    for update in range(num_updates):
        optimizer.zero_grad()
        sum((p * (update + 1)).square().sum() for p in model.parameters()).backward()
        optimizer.step()
    return model, optimizer


def update(model, optimizer) -> str:
    optimizer.zero_grad()
    sum(p.sin().sum() for p in model.parameters()).backward()
    optimizer.step()
    return weights_digest(model)


def save(folder, model, optimizer, train_step: int, **options):
    return save_checkpoint(
        folder, train_step=train_step, model=model, optimizer=optimizer, loader={"cursor": train_step}, **options
    )


def test_restored_training_continues_bit_for_bit(tmp_path) -> None:
    """Weights and moments are back: the next update gives the same weights."""
    model, optimizer = trained(0, 3)
    checkpoint = load_checkpoint(save(tmp_path, model, optimizer, 3))
    other, other_optimizer = trained(1, 1)
    restore(checkpoint, other, other_optimizer)
    assert weights_digest(other) == weights_digest(model)
    assert checkpoint.train_step == 3 and checkpoint.loader == {"cursor": 3}
    assert update(other, other_optimizer) == update(model, optimizer)


def test_latest_goes_by_number_and_old_ones_go(tmp_path) -> None:
    """Step 1000000000 is newer than 999999999, and only the newest two stay."""
    model, optimizer = trained(0, 1)
    assert latest(tmp_path) is None
    for train_step in (5, 999_999_999, 1_000_000_000):
        save(tmp_path, model, optimizer, train_step)
    newest = latest(tmp_path)
    assert newest is not None and load_checkpoint(newest).train_step == 1_000_000_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1000000000", "step-999999999"]


def test_unfinished_checkpoint_is_not_seen(tmp_path) -> None:
    """What a killed writer leaves behind under its temporary name is never taken for a checkpoint."""
    model, optimizer = trained(0, 1)
    whole = save(tmp_path, model, optimizer, 4)
    save(tmp_path, model, optimizer, 8).rename(tmp_path / ".step-00000008.77.tmp")
    assert latest(tmp_path) == whole


def test_flipped_bit_in_the_tensors_is_refused(tmp_path) -> None:
    """Damage is found by the digest, and the message gives both."""
    model, optimizer = trained(0, 1)
    path = save(tmp_path, model, optimizer, 4)
    tensors = path / "tensors.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-5] ^= 1
    tensors.write_bytes(content)
    expected = json.loads((path / "state.json").read_text())["tensors_xxh3"]
    with pytest.raises(ResumeError, match=f"expected {expected}"):
        load_checkpoint(path)


def test_absent_file_and_unknown_version_are_refused(tmp_path) -> None:
    """A checkpoint that cannot be read says what is wrong with it."""
    model, optimizer = trained(0, 1)
    path = save(tmp_path, model, optimizer, 4)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "format_version": 9}))
    with pytest.raises(ResumeError, match="format version 9: expected 1"):
        load_checkpoint(path)
    (path / "tensors.safetensors").unlink()
    with pytest.raises(ResumeError, match="cannot be read"):
        load_checkpoint(path)


def test_model_is_a_function_of_its_seed_and_draws_from_no_global_generator() -> None:
    """Equal seeds give equal weights, others do not, and torch's own generator is left alone."""
    before = torch.random.get_rng_state()
    first, again, other = make_model(3), make_model(3), make_model(4)
    assert weights_digest(first) == weights_digest(again) != weights_digest(other)
    assert torch.equal(before, torch.random.get_rng_state())
    assert 100_000 < sum(p.numel() for p in first.parameters()) < 300_000
