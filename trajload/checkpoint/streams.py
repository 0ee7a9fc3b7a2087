"""Random streams: the states of every generator that a training may draw from, saved and put back exactly.

Python's `random`, NumPy's global generator (all five fields: with three of them the next normal draw differs), torch on the
CPU and on every CUDA device, and generators of your own, by name. Reading and setting states draws nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from trajload.arguments import explains_calls
from trajload.errors import CheckpointMismatchError, ConfigError

__all__ = ["Streams"]

_GLOBAL = ("python", "numpy", "torch")
_OWN = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)


@explains_calls
class Streams:
    """All random streams of a process, as one component of a checkpoint.

    Args:
        generators: Generators of your own, by name: `np.random.Generator`, `np.random.RandomState`, `torch.Generator` (of any
            device), `random.Random`. They are changed in place when a state is loaded.

    CUDA devices are saved once CUDA is in use in this process.

    Example:
        >>> noise = np.random.Generator(np.random.PCG64(7))
        >>> streams = Streams(noise=noise)
        >>> saved = streams.state_dict()
        >>> first = noise.random()
        >>> streams.load_state_dict(saved)
        >>> noise.random() == first
        True
    """

    def __init__(
        self, **generators: np.random.Generator | np.random.RandomState | torch.Generator | random.Random
    ) -> None:
        for name, generator in generators.items():
            if not isinstance(generator, _OWN):
                raise ConfigError(
                    f"stream {name!r} is a {type(generator).__module__}.{type(generator).__qualname__}: expected a NumPy Generator "
                    "or RandomState, a torch.Generator, or a random.Random."
                )
            if isinstance(generator, random.SystemRandom):
                raise ConfigError(f"stream {name!r} is a SystemRandom, which has no state: expected a random.Random.")
        self._own = dict(generators)

    @property
    def names(self) -> list[str]:
        """Of all streams that `state_dict` holds now, for messages and audits."""
        return sorted(_names(self.state_dict()))

    def __repr__(self) -> str:
        return f"Streams({', '.join(f'{name}={type(own).__name__}' for name, own in self._own.items())})"

    def registered(self) -> list[Any]:
        """Return the generators of one's own."""
        return list(self._own.values())

    def put(self, name: str, state: Mapping[str, Any]) -> None:
        """Give one generator its state: `state_dict()["own"][name]` of streams that have one of this kind."""
        _put(self._own[name], state)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all streams, as plain values, arrays and tensors of their own."""
        return {
            "python": _python_state(random.getstate()),
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - the one that others draw from
            "torch": torch.get_rng_state(),
            "cuda": {str(i): torch.cuda.get_rng_state(i) for i in range(_cuda_devices())},
            "own": {name: _state_of(generator) for name, generator in self._own.items()},
        }

    def differing_streams(self, state: Mapping[str, Any]) -> list[str]:
        """Return a line for each stream that only one side has, or that is of another kind; nothing is changed."""
        absent = [name for name in (*_GLOBAL, "cuda", "own") if name not in state]
        if absent:
            return [f"the state lacks {absent}: it is not that of Streams"]
        here, there = _names(self.state_dict()), _names(state)
        lines = [f"stream {name!r} is not in the checkpoint" for name in here if name not in there]
        for name, kind in there.items():
            if name not in here and not (name.startswith("cuda:") and _cuda_can_start(name)):
                lines.append(f"stream {name!r} of the checkpoint is not here")
            elif name in here and kind != here[name]:
                lines.append(f"stream {name!r} saved as {kind}, here {here[name]}")
        for name, generator in self._own.items():
            if name in state["own"] and (line := _spawn_line(name, generator, state["own"][name])):
                lines.append(line)
        return lines

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Put every stream back.

        Args:
            state: From `state_dict`.
            strict: False leaves alone the streams that only one side has, or that are of another kind.

        Raises:
            CheckpointMismatchError: Streams differ; all are named, and nothing was changed.
        """
        if strict and (lines := self.differing_streams(state)):
            raise CheckpointMismatchError(
                "the random streams are not those that were saved; nothing was changed:\n  - "
                + "\n  - ".join(lines)
                + "\nRegister the same generators: Streams(name=generator)."
            )
        here, there = _names(self.state_dict()), _names(state)
        random.setstate(_python_tuple(state["python"]))
        if here["numpy"] == there["numpy"]:
            np.random.set_state(state["numpy"])  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        for index, saved in state["cuda"].items():
            if f"cuda:{index}" in here or _cuda_can_start(f"cuda:{index}"):
                torch.cuda.set_rng_state(saved, int(index))
        for name, generator in self._own.items():
            if name in state["own"] and here[f"own:{name}"] == there[f"own:{name}"]:
                _put(generator, state["own"][name])


def _cuda_devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() and torch.cuda.is_initialized() else 0


def _cuda_can_start(name: str) -> bool:
    """Whether 'cuda:3' exists here, though CUDA may not be in use yet."""
    return torch.cuda.is_available() and int(name.partition(":")[2]) < torch.cuda.device_count()


def _names(state: Mapping[str, Any]) -> dict[str, str]:
    """Return {stream: kind} of a state."""
    return {
        "python": "random.Random",
        "numpy": f"RandomState of {state['numpy']['bit_generator']}",
        "torch": "torch.Generator on cpu",
        **{f"cuda:{index}": "torch.Generator on cuda" for index in state["cuda"]},
        **{f"own:{name}": _kind(saved) for name, saved in state["own"].items()},
    }


def _kind(saved: Mapping[str, Any]) -> str:
    inner = saved["state"]
    detail = inner["bit_generator"] if saved["kind"].startswith("numpy") else saved.get("device", "")
    return f"{saved['kind']} {detail}".strip()


def _state_of(generator: Any) -> dict[str, Any]:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return {"kind": "numpy.random.Generator", "state": bits.state, "seed": _seed_sequence(bits)}
    if isinstance(generator, np.random.RandomState):
        return {"kind": "numpy.random.RandomState", "state": generator.get_state(legacy=False)}
    if isinstance(generator, torch.Generator):
        return {"kind": "torch.Generator", "state": generator.get_state(), "device": generator.device.type}
    return {"kind": "random.Random", "state": _python_state(generator.getstate())}


def _put(generator: Any, saved: Mapping[str, Any]) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = saved["state"]
        behind = (saved.get("seed") or {}).get("spawned", 0) - (_seed_sequence(generator.bit_generator) or {}).get(
            "spawned", 0
        )
        if behind > 0:
            _sequence(generator.bit_generator).spawn(behind)  # counts them as given out, as they were
    elif isinstance(generator, (np.random.RandomState, torch.Generator)):
        generator.set_state(saved["state"])
    else:
        generator.setstate(_python_tuple(saved["state"]))


def _python_state(state: tuple[Any, ...]) -> dict[str, Any]:
    version, words, gauss = state
    return {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}


def _python_tuple(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return (state["version"], tuple(int(word) for word in state["words"]), state["gauss"])


def _sequence(bits: Any) -> Any:
    return getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None)


def _seed_sequence(bits: Any) -> dict[str, Any] | None:
    """Return where children of a generator come from: `Generator.spawn` counts them apart from the draws."""
    sequence = _sequence(bits)
    if not isinstance(sequence, np.random.SeedSequence):
        return None
    entropy = sequence.entropy
    return {
        "entropy": entropy if entropy is None or isinstance(entropy, int) else [int(word) for word in entropy],
        "spawn_key": [int(key) for key in sequence.spawn_key],
        "spawned": sequence.n_children_spawned,
    }


def _spawn_line(name: str, generator: Any, saved: Mapping[str, Any]) -> str | None:
    """Return what is wrong where children have been spawned from a generator: the next ones must be those of the saved run."""
    there = saved.get("seed")
    here = _seed_sequence(generator.bit_generator) if isinstance(generator, np.random.Generator) else None
    if there is None or here is None or not (there["spawned"] or here["spawned"]):
        return None
    if (there["entropy"], there["spawn_key"]) != (here["entropy"], here["spawn_key"]):
        return f"stream 'own:{name}' has spawned children, but is seeded otherwise here: its next children would differ"
    if here["spawned"] > there["spawned"]:
        return f"stream 'own:{name}' has spawned {here['spawned']} children here, {there['spawned']} when it was saved: build it anew"
    return None
