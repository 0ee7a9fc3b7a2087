"""Laws of the batch: masks, identity, pickling."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from trajload.collate.batch import Batch
from trajload.errors import ConfigError
from trajload.refs import WindowRef

REF = WindowRef(
    source="pusht", episode_index=3, episode_key="ep-3", start=5, stop=7, dilation=1, window_id=11, epoch=0, position=4
)


def batch_of(**changes: Any) -> Batch:
    values: dict[str, Any] = {
        "action": torch.arange(8, dtype=torch.float32).reshape(2, 2, 2),
        "action_is_pad": torch.tensor([[False, True], [False, False]]),
        "action_is_missing": torch.tensor([False, False]),
        "task": ["push", "püsh"],
        "task_is_missing": torch.tensor([False, True]),
        "step_index": torch.tensor([[0, 1], [5, 6]]),
        "source": ["pusht", "pusht"],
    }
    return Batch({**values, **changes}, train_step=4, refs=(REF, REF))


def test_valid_mask_leaves_out_padding_missing_and_fill_up_rows() -> None:
    """A step is valid only where no mask says otherwise, each mask counting alone."""
    assert batch_of().valid_mask("action").tolist() == [[True, False], [True, True]]
    missing = torch.tensor([False, True])
    assert batch_of(action_is_missing=missing).valid_mask("action").tolist() == [[True, False], [False, False]]
    assert batch_of(row_is_pad=missing).valid_mask("action").tolist() == [[True, False], [False, False]]
    assert batch_of(row_is_pad=missing).valid_mask("action").dtype == torch.bool


def test_valid_mask_of_text_has_one_value_a_window() -> None:
    """Text has no steps: its mask is (B,)."""
    assert batch_of().valid_mask("task").tolist() == [True, False]
    assert batch_of(row_is_pad=torch.tensor([True, False])).valid_mask("task").tolist() == [False, False]


@pytest.mark.parametrize("stream", ["cam", "step_index", "action_is_pad"])
def test_valid_mask_of_no_stream_lists_the_streams(stream: str) -> None:
    """What is not a stream of the batch is refused by name, with those that are."""
    with pytest.raises(ConfigError, match=f"stream '{stream}' is not in this batch: it has 'action', 'task'"):
        batch_of().valid_mask(stream)


def test_valid_mask_over_a_mask_that_is_a_list_is_refused() -> None:
    """A mask somebody replaced by a list is an error, not a crash in arithmetic."""
    with pytest.raises(ConfigError, match=r"batch\['action_is_missing'\] is not a mask: got list"):
        batch_of(action_is_missing=[False, False]).valid_mask("action")


def test_refs_are_built_once_and_only_when_asked_for() -> None:
    """Addresses cost nothing to who does not look at them."""
    calls = []

    def build() -> list[WindowRef]:
        calls.append(1)
        return [REF]

    batch = Batch({}, train_step=0, refs=build)
    assert not calls
    assert batch.refs == batch.refs == (REF,)
    assert len(calls) == 1


def test_batch_survives_pickling_with_lazy_refs() -> None:
    """Values, train_step and addresses cross a process, though the builder itself could not."""
    batch = batch_of()
    lazy = Batch(batch, train_step=4, refs=lambda: [REF, REF])
    back = pickle.loads(pickle.dumps(lazy))
    assert type(back) is Batch
    assert (back.train_step, back.refs, back.streams) == (4, (REF, REF), ("action", "task"))
    assert back.digest() == batch.digest()


def test_depth_is_pickled_bit_for_bit() -> None:
    """torch cannot read its own pickles of uint16, which depth has; shapes without values come back as well."""
    depth = torch.from_numpy(np.array([[[0, 1], [40_000, 65_535]]] * 2, dtype=np.uint16))
    batch = batch_of(depth=depth, none=torch.zeros((2, 0), dtype=torch.uint16), one=torch.tensor(7, dtype=torch.uint16))
    back = pickle.loads(pickle.dumps(batch))
    assert back["depth"].dtype == torch.uint16
    assert (back.digest(), list(back)) == (batch.digest(), list(batch))


def test_to_and_copy_keep_train_step_refs_and_lists() -> None:
    """A moved or copied batch is a Batch with the same identity; the copy has its own keys."""
    batch = batch_of()
    for other in (batch.to("cpu"), batch.copy(), batch.to(torch.device("cpu"), non_blocking=True)):
        assert type(other) is Batch
        assert (other.train_step, other.refs, other.digest()) == (4, batch.refs, batch.digest())
    other = batch.copy()
    del other["action"]
    assert "action" in batch
    assert batch.to("meta")["action"].device.type == "meta"  # type: ignore[union-attr]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="checks the error of a machine without accelerator")
def test_pin_memory_without_accelerator_says_so() -> None:
    """Pinning has no meaning on a CPU machine: the error says to leave it out."""
    with pytest.raises(ConfigError, match="pin_memory needs an accelerator"):
        batch_of().pin_memory()


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() and os.environ.get("TRAJLOAD_REQUIRE_GPU") != "1", reason="needs a CUDA device"
)
def test_pin_memory_and_to_cuda_keep_every_value() -> None:
    """A pinned batch moved to the GPU has the same digest."""
    pinned = batch_of().pin_memory()
    assert pinned["action"].is_pinned()  # type: ignore[union-attr]
    assert pinned.to("cuda", non_blocking=True).digest() == batch_of().digest()


@pytest.mark.parametrize(
    "change",
    [
        {"action": torch.arange(8, dtype=torch.float64).reshape(2, 2, 2)},
        {"action": torch.arange(8, dtype=torch.float32).reshape(2, 4, 1)},
        {"action": torch.arange(8, dtype=torch.float32).reshape(2, 2, 2) * -1},
        {"step_index": torch.tensor([[0, 1], [5, 7]])},
        {"task": ["push", "push"]},
        {"task": ["pushpü", "sh"]},
        {"source": ["pusht", None]},
        {"extra": torch.tensor(1)},
        {"extra": torch.empty(0)},
    ],
    ids=["dtype", "shape", "values", "other key", "text", "text moved over a border", "None", "0-dim key", "empty key"],
)
def test_digest_differs_where_anything_differs(change: dict[str, Any]) -> None:
    """Dtype, shape, one bit, a letter, or a key more each give another digest."""
    assert batch_of(**change).digest() != batch_of().digest()


def test_digest_does_not_depend_on_key_order_memory_layout_or_train_step() -> None:
    """Equal content is an equal digest, however it lies in memory and whatever step it belongs to."""
    batch = batch_of()
    turned = Batch(reversed(batch.items()), train_step=99)
    strided = batch["action"].permute(2, 0, 1).contiguous().permute(1, 2, 0)  # type: ignore[union-attr]
    assert not strided.is_contiguous()
    assert batch.digest() == turned.digest() == batch_of(action=strided).digest()


def test_digest_is_the_same_on_every_machine_and_version() -> None:
    """The digest of a known batch is the checked-in one: saved digests stay comparable."""
    assert batch_of().digest() == "782fbb86e046eb29e6fc61cb98c5dfbb"


def test_digest_takes_bfloat16_and_refuses_what_is_no_json() -> None:
    """Dtypes NumPy lacks can be hashed; objects without a stable text cannot, and the key is named."""
    a, b = (batch_of(action=torch.tensor([x], dtype=torch.bfloat16)).digest() for x in (1.0, 2.0))
    assert a != b
    with pytest.raises(ConfigError, match=r"batch\['task'\] has no digest: expected a tensor or JSON-able values"):
        batch_of(task=[object(), 1]).digest()


def test_repr_shows_shapes_and_no_values() -> None:
    """Printing a batch fits a terminal."""
    assert repr(batch_of()) == (
        "Batch(train_step=4,\n"
        "  action: float32 (2, 2, 2)\n"
        "  action_is_pad: bool (2, 2)\n"
        "  action_is_missing: bool (2,)\n"
        "  task: list of 2\n"
        "  task_is_missing: bool (2,)\n"
        "  step_index: int64 (2, 2)\n"
        "  source: list of 2\n"
        ")"
    )
