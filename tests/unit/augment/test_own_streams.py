"""Transforms of one source: own names inside, batch keys outside, other streams pass by."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from trajload.augment.chain import TransformChain
from trajload.augment.contract import WindowDict, config_of, name_of
from trajload.augment.own_streams import own_streams
from trajload.augment.steps import ActionNoise
from trajload.errors import StageFailedError
from trajload.spec import StreamSpec
from trajload.types import Modality

KEYS = {"action": "command"}


def shift(window: WindowDict, generator: np.random.Generator, *, by: float = 1.0) -> WindowDict:
    """Move the commands; sees nothing else."""
    assert sorted(window) == ["command", "command_is_missing", "command_is_pad"]
    window["command"] = window["command"] + np.float32(by)
    return window


def forgetful(window: WindowDict, generator: np.random.Generator) -> WindowDict:
    """Return a key that nobody asked for, and lose one."""
    return {"new": window["command"]}


def chain_of(transform: Any) -> TransformChain:
    """Return a chain over a stream of the source and one of another."""
    specs = {
        key: StreamSpec(name=name, modality=Modality.ACTION, encoding="npy", shape=(2,), dtype="float32")
        for key, name in (("action", "command"), ("other", "other"))
    }
    layout = {key: ((2,), np.dtype(np.float32)) for key in specs}
    return TransformChain([own_streams(transform, KEYS)], specs, layout, 3)


def window() -> WindowDict:
    out: WindowDict = {}
    for key in ("action", "other"):
        out[key] = np.zeros((3, 2), np.float32)
        out[f"{key}_is_pad"], out[f"{key}_is_missing"] = np.zeros(3, np.bool_), False
    return out


@pytest.mark.parametrize("transform", [shift, functools.partial(shift, by=1.0)])
def test_a_function_sees_own_names_only(transform: Any) -> None:
    """Its result comes back under batch keys, and other streams come back as they were."""
    out = chain_of(transform).apply(window(), epoch=0, window_id=0)
    assert (out["action"] == 1).all() and (out["other"] == 0).all()


def test_streams_none_stands_for_own_streams() -> None:
    """Noise on all actions of the source leaves the actions of others alone, with and without telling draws."""
    chain = chain_of(ActionNoise(std=0.5))
    draws: list[Any] = []
    told = chain.apply(window(), epoch=0, window_id=4, draws=draws)
    plain = chain.apply(window(), epoch=0, window_id=4)
    assert (
        (told["action"] != 0).all() and (told["other"] == 0).all() and np.array_equal(told["action"], plain["action"])
    )
    assert draws[0]["transform"] == "ActionNoise" and draws[0]["draws"] is not None


def test_states_and_messages_name_the_transform_itself() -> None:
    """Not the shell around it."""
    noise = ActionNoise(std=0.5, streams=["command"])
    assert config_of(own_streams(noise, KEYS)) == config_of(noise)
    assert name_of(own_streams(noise, KEYS)) == "ActionNoise"
    assert name_of(own_streams(functools.partial(shift, by=2.0), KEYS)) == name_of(shift)
    assert config_of(own_streams(shift, KEYS)) == config_of(shift)
    with pytest.raises(StageFailedError, match=r"forgetful\) returned other keys: lacks \['action', .*adds \['new'\]"):
        chain_of(forgetful).apply(window(), epoch=0, window_id=0)
