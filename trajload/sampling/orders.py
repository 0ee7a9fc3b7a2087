"""The orders there are, by name and version, with their parameters: what users ask for, and what a state records.

`position -> (epoch, offset) = divmod(position, num_windows)`; an order maps the offset to a window id, anew in each
epoch. A version's arithmetic never changes, so that an old state resumes in the order it was saved in; a better rule
gets a new version. Source: docs/decisions/0041-order-versions.md
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trajload.arguments import explains_calls
from trajload.checks import did_you_mean, quoted
from trajload.errors import ConfigError, described
from trajload.sampling.blocks import check_block_windows
from trajload.sampling.continuous import ContinuousOrder
from trajload.sampling.interleaved import InterleavedOrder, check_lanes_per_row
from trajload.sampling.interleaved_1 import Interleaved1Order
from trajload.sampling.interleaved_2 import Interleaved2Order
from trajload.sampling.interleaved_3 import Interleaved3Order
from trajload.sampling.order_base import Order, OrderInputs
from trajload.sampling.shuffled import SequentialOrder, ShuffledOrder
from trajload.sampling.weighted import WeightedOrder, integer_weights
from trajload.sampling.windows import WindowTable
from trajload.types import Int64Array, NDArray

__all__ = [
    "Continuous",
    "Interleaved",
    "Interleaved1",
    "Interleaved2",
    "Order",
    "OrderConfig",
    "Sequential",
    "Shuffled",
    "Weighted",
    "make_order",
    "order_config",
    "resolve_order",
]


class OrderConfig(ABC):
    """An order with its parameters, not yet bound to windows and a seed. Immutable."""

    version: ClassVar[str]

    @abstractmethod
    def build(self, inputs: OrderInputs) -> Order:
        """Return the order itself."""

    def to_json(self) -> str | dict[str, Any]:
        """Return what the state records: the version, or an object with the version and each parameter."""
        return self.version


@dataclass(frozen=True)
class Sequential(OrderConfig):
    """Windows by rising id."""

    version: ClassVar[str] = "sequential/1"

    def build(self, inputs: OrderInputs) -> SequentialOrder:
        return SequentialOrder(inputs)


@dataclass(frozen=True)
class Shuffled(OrderConfig):
    """Uniform over all windows of an epoch, each once."""

    version: ClassVar[str] = "shuffled/1"

    def build(self, inputs: OrderInputs) -> ShuffledOrder:
        return ShuffledOrder(inputs)


@explains_calls
@dataclass(frozen=True, kw_only=True)
class Interleaved(OrderConfig):
    """Each window once an epoch, mixed like a shuffle, neighbours used close together so that frames decode once.

    Example:
        >>> Interleaved(block_windows=32).to_json()
        {'version': 'interleaved/3', 'block_windows': 32, 'lanes_per_row': 4}
    """

    block_windows: int = 16
    """Neighbouring window starts that share decoded frames. More: fewer frames decoded, more memory a block."""
    lanes_per_row: int = 4
    """Blocks in use per row of the global batch. 1 draws neighbouring batches from the same blocks; lowered on small
    data until there is a block for each lane."""
    version: ClassVar[str] = "interleaved/3"

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_windows", check_block_windows(self.block_windows))
        object.__setattr__(self, "lanes_per_row", check_lanes_per_row(self.lanes_per_row))

    def build(self, inputs: OrderInputs) -> InterleavedOrder:
        return Interleaved3Order(inputs, block_windows=self.block_windows, lanes_per_row=self.lanes_per_row)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "block_windows": self.block_windows,
            "lanes_per_row": self.lanes_per_row,
        }


@dataclass(frozen=True, kw_only=True)
class Interleaved1(Interleaved):
    """`interleaved/1`, to go on with runs that began with it; `Interleaved` brings new blocks more evenly.

    Example:
        >>> order_config({"version": "interleaved/1", "block_windows": 32}) == Interleaved1(block_windows=32)
        True
    """

    version: ClassVar[str] = "interleaved/1"

    def build(self, inputs: OrderInputs) -> InterleavedOrder:
        return Interleaved1Order(inputs, block_windows=self.block_windows, lanes_per_row=self.lanes_per_row)


@dataclass(frozen=True, kw_only=True)
class Interleaved2(Interleaved):
    """`interleaved/2`, to go on with runs that began with it; `Interleaved` begins no blocks at the start of an epoch.

    Example:
        >>> order_config({"version": "interleaved/2", "block_windows": 32}) == Interleaved2(block_windows=32)
        True
    """

    version: ClassVar[str] = "interleaved/2"

    def build(self, inputs: OrderInputs) -> InterleavedOrder:
        return Interleaved2Order(inputs, block_windows=self.block_windows, lanes_per_row=self.lanes_per_row)


@explains_calls
@dataclass(frozen=True)
class Continuous(OrderConfig):
    """Row b of a batch continues row b of the batch before."""

    version: ClassVar[str] = "continuous/1"

    def build(self, inputs: OrderInputs) -> ContinuousOrder:
        return ContinuousOrder(inputs)


@explains_calls
@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted(OrderConfig):
    """Windows drawn with replacement, episodes by weight. The state records a digest of the weights.

    Example:
        >>> Weighted(episode_weights=[1, 0, 3]).version
        'weighted/1'
    """

    episode_weights: NDArray | Callable[[Any], float]
    """One number >= 0 for each episode of the dataset, or a function of its `EpisodeInfo` (`info.metadata["quality"]`).
    An episode is drawn in proportion to its weight, however long it is; multiply by the length to draw by windows."""
    version: ClassVar[str] = "weighted/1"

    def __post_init__(self) -> None:
        if not callable(self.episode_weights):
            object.__setattr__(self, "episode_weights", integer_weights(np.asarray(self.episode_weights)))

    def bind(self, episodes: Callable[[], Any]) -> Weighted:
        """Return this order with a function of `EpisodeInfo` replaced by its values.

        Args:
            episodes: Called for an iterable of the dataset's `EpisodeInfo`, only where they are needed.
        """
        if not callable(self.episode_weights):
            return self
        values = []
        for info in episodes():
            try:
                value = self.episode_weights(info)
            except Exception as err:
                raise ConfigError(
                    f"episode_weights failed for episode {info.index} ({info.key!r}): {described(err)}. Expected a function of "
                    "EpisodeInfo that returns a number, or an array with one for each episode."
                ) from err
            if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
                raise ConfigError(
                    f"episode_weights gave {value!r} for episode {info.index} ({info.key!r}): expected a number >= 0."
                )
            values.append(value)
        return Weighted(episode_weights=np.asarray(values))

    def build(self, inputs: OrderInputs) -> WeightedOrder:
        return WeightedOrder(inputs, weight_E=self._bound())

    def to_json(self) -> dict[str, Any]:
        weight_E = self._bound()
        digest = hashlib.sha256(weight_E.astype("<i8").tobytes()).hexdigest()
        return {"version": self.version, "num_weights": len(weight_E), "weights_digest": digest}

    def _bound(self) -> Int64Array:
        if callable(self.episode_weights):
            raise ConfigError("episode_weights is a function: it needs a dataset to give it episodes. Pass numbers.")
        return self.episode_weights


_ORDERS: dict[str, type[OrderConfig]] = {
    order.version: order
    for order in (Sequential, Shuffled, Interleaved1, Interleaved2, Interleaved, Continuous, Weighted)
}
"""Of one name, the newest version last."""
_NEWEST = {version.split("/")[0]: version for version in _ORDERS}


def resolve_order(name: object) -> str:
    """Return the version a name stands for: 'shuffled' -> 'shuffled/1'; a version stands for itself.

    Raises:
        ConfigError: Neither a name nor a version of an order; the message lists both.
    """
    version = _NEWEST.get(name, name) if isinstance(name, str) else name
    if not isinstance(version, str) or version not in _ORDERS:
        allowed = (*_NEWEST, *_ORDERS)
        is_class = isinstance(name, type) and issubclass(name, OrderConfig)
        hint = " It is a class: call it, with its arguments." if is_class else did_you_mean(name, allowed)
        raise ConfigError(f"order={name!r} is unknown: expected one of {quoted(allowed)}.{hint}")
    return version


def order_config(order: str | OrderConfig | Mapping[str, Any]) -> OrderConfig:
    """Return the order that a name, a version, a value or a state's object asks for.

    Raises:
        ConfigError: Unknown, a parameter that the order lacks, or one without a default (`weighted`).
    """
    if isinstance(order, OrderConfig):
        return order
    parameters: dict[str, Any] = {}
    if isinstance(order, Mapping):
        parameters = {str(k): v for k, v in order.items() if k != "version"}
        order = order.get("version", order)  # type: ignore[assignment]
    version = resolve_order(order)
    if version == Weighted.version:
        raise ConfigError(
            f"order={version!r} needs weights, of which a state holds only a digest: pass "
            "order=tl.Weighted(episode_weights=...)."
        )
    try:
        return _ORDERS[version](**parameters)
    except TypeError as err:
        raise ConfigError(f"order={version!r} does not take {sorted(parameters)!r}: {err}.") from err


def make_order(
    order: str | OrderConfig | Mapping[str, Any],
    *,
    seed: int,
    num_windows: int | None = None,
    table: WindowTable | None = None,
    global_batch_size: int | None = None,
) -> Order:
    """Return an order bound to its windows.

    Args:
        order: Name (taken as its newest version), version, or value such as `Interleaved(block_windows=8)`.
        seed: The run's seed.
        num_windows: Windows of the table; enough for 'sequential' and 'shuffled'.
        table: The windows; the other orders depend on its episodes.
        global_batch_size: Windows per train_step, for orders with lanes.
    """
    if table is not None and num_windows not in (None, table.num_windows):
        raise ConfigError(f"num_windows={num_windows} does not fit the table: it has {table.num_windows} windows.")
    if table is None and num_windows is None:
        raise ConfigError("make_order needs num_windows= or table=.")
    inputs = OrderInputs(
        num_windows=table.num_windows if table is not None else num_windows,  # type: ignore[arg-type]
        seed=seed,
        first_E1=None if table is None else table.first_E1,
        global_batch_size=global_batch_size,
        tile_windows=1 if table is None else _tile_windows(table),
    )
    return order_config(order).build(inputs)


def _tile_windows(table: WindowTable) -> int:
    """Return how many window ids lie between a window and the first that starts after all of its steps.

    Steps `start + dilation * [0, num_steps)` are continued by the window that starts at `start + num_steps *
    dilation`, or at the first multiple of the stride from there on.
    """
    window = table.window
    return -(-window.num_steps * window.dilation // window.stride)
