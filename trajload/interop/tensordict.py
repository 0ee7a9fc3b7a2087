"""Batches as TensorDicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trajload.errors import MissingDependencyError

if TYPE_CHECKING:
    from tensordict import TensorDict

    from trajload.collate.batch import Batch

__all__ = ["to_tensordict"]


def to_tensordict(batch: Batch) -> TensorDict:
    """Return the batch as a TensorDict of batch size (B,): the same keys, tensors shared and not copied.

    Strings become non-tensor data, one value a row; `train_step` becomes a key, int64 (B,), so that it survives indexing,
    stacking and a replay buffer. `refs` stay with the batch.

    Raises:
        MissingDependencyError: tensordict is not installed.

    Example:
        >>> to_tensordict(batch)["action"].shape  # doctest: +SKIP
        torch.Size([32, 16, 7])
    """
    try:
        from tensordict import NonTensorData, NonTensorStack, TensorDict
    except ImportError as err:
        raise MissingDependencyError(
            "TensorDict output needs tensordict; run: pip install 'trajload[trainers]'"
        ) from err
    num_rows = len(batch["window_id"])
    values: dict[str, Any] = {
        key: value if isinstance(value, torch.Tensor) else NonTensorStack(*(NonTensorData(v) for v in value))
        for key, value in batch.items()
    }
    values["train_step"] = torch.full((num_rows,), batch.train_step, dtype=torch.int64)
    return TensorDict(values, batch_size=[num_rows])
