"""Every random stream goes on with the draws it would have made."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import torch

from trajload.checkpoint.restoring import restore
from trajload.checkpoint.store import Store
from trajload.checkpoint.streams import Streams
from trajload.errors import CheckpointMismatchError, ConfigError

pytestmark = [pytest.mark.global_rng, pytest.mark.usefixtures("one_thread")]


def own() -> dict[str, Any]:
    bits = {
        "pcg": np.random.PCG64(1),
        "dxsm": np.random.PCG64DXSM(1),
        "philox": np.random.Philox(key=3),
        "mt": np.random.MT19937(1),
        "sfc": np.random.SFC64(1),
    }
    return {
        **{name: np.random.Generator(bit) for name, bit in bits.items()},
        "legacy": np.random.RandomState(5),
        "torch_": torch.Generator().manual_seed(4),
        "mersenne": random.Random(2),
    }


def draws(generators: dict[str, Any]) -> list[Any]:
    """Draw from every stream, kinds of draws that keep half a pair included."""
    found: list[Any] = [random.random(), random.gauss(0, 1), np.random.standard_normal(3).tolist()]  # noqa: NPY002
    found += [torch.rand(2).tolist(), torch.randn(3).tolist()]
    for generator in generators.values():
        if isinstance(generator, torch.Generator):
            found.append(torch.randn(3, generator=generator).tolist())
        elif isinstance(generator, random.Random):
            found.append([generator.gauss(0, 1), generator.getrandbits(70)])
        else:
            found.append(generator.standard_normal(3).tolist())
            found.append(generator.integers(0, 9, 3, dtype=np.uint16).tolist() if hasattr(generator, "integers") else 0)
    return found


def test_all_streams_go_on(store: Store, kept: Any) -> None:
    """Python, NumPy's global with its saved half of a pair, torch, and eight kinds of one's own."""
    first = own()
    draws(first)  # an odd number of normals: the other half of a pair waits
    part = kept.keep(store, {"rng": Streams(**first)})
    expected = [draws(first) for _ in range(2)]
    second = own()
    draws(second)
    restore({"rng": Streams(**second)}, part)
    assert [draws(second) for _ in range(2)] == expected


def test_the_fifth_field_of_numpys_state_is_kept() -> None:
    """With three fields the next normal draw would be another."""
    np.random.seed(3)  # noqa: NPY002
    np.random.standard_normal()  # noqa: NPY002
    state = Streams().state_dict()
    assert state["numpy"]["has_gauss"] == 1
    expected = np.random.standard_normal()  # noqa: NPY002
    np.random.seed(4)  # noqa: NPY002
    Streams().load_state_dict(state)
    assert np.random.standard_normal() == expected  # noqa: NPY002


def test_reading_the_state_draws_nothing() -> None:
    """Two reads are equal, and so are the draws."""
    generators = own()
    streams = Streams(**generators)
    one, other = streams.state_dict(), streams.state_dict()
    assert one["python"]["words"].tolist() == other["python"]["words"].tolist()
    assert torch.equal(one["torch"], other["torch"])
    expected = draws(generators)
    streams.load_state_dict(one)
    assert draws(generators) == expected


def test_streams_that_differ_are_all_named_and_nothing_is_changed() -> None:
    """Missing, extra, of another kind; strict=False loads the others."""
    pcg = lambda seed: np.random.Generator(np.random.PCG64(seed))  # noqa: E731
    saved = Streams(a=pcg(1), b=pcg(2), same=pcg(3)).state_dict()
    same = pcg(9)
    other = Streams(a=np.random.Generator(np.random.SFC64(1)), c=torch.Generator(), same=same)
    before = torch.get_rng_state()
    torch.rand(1)
    after = torch.get_rng_state()
    with pytest.raises(CheckpointMismatchError) as caught:
        other.load_state_dict(saved)
    text = str(caught.value)
    assert "stream 'own:a' saved as numpy.random.Generator PCG64, here numpy.random.Generator SFC64" in text
    assert "stream 'own:b' of the checkpoint is not here" in text and "stream 'own:c' is not in the checkpoint" in text
    assert torch.equal(torch.get_rng_state(), after)
    other.load_state_dict(saved, strict=False)
    assert torch.equal(torch.get_rng_state(), before) and same.random() == pcg(3).random()


def test_restore_lists_streams_among_other_differences(store: Store, kept: Any) -> None:
    """One message for model and streams; accepted ones are returned."""
    part = kept.keep(store, {"rng": Streams(noise=own()["pcg"]), "n": {"x": torch.zeros(2)}})
    with pytest.raises(CheckpointMismatchError, match=r"rng: stream 'own:noise' of .*\n.*n: 'x' saved"):
        restore({"rng": Streams(), "n": {"x": torch.zeros(3)}}, part)
    assert restore({"rng": Streams()}, part, strict=False) == ["rng: stream 'own:noise' of the checkpoint is not here"]


def test_spawned_children_go_on_counting(store: Store, kept: Any) -> None:
    """`Generator.spawn` counts apart from the draws; the next child is the one that would have come."""
    first, second = (np.random.Generator(np.random.PCG64(5)) for _ in range(2))
    first.spawn(3)
    part = kept.keep(store, {"rng": Streams(g=first)})
    expected = first.spawn(1)[0].random()
    restore({"rng": Streams(g=second)}, part)
    assert second.spawn(1)[0].random() == expected
    for other, words in (
        (np.random.Generator(np.random.PCG64(6)), "seeded otherwise here"),
        (second, "has spawned 4 children here, 3 when it was saved"),
    ):
        with pytest.raises(CheckpointMismatchError, match=words):
            restore({"rng": Streams(g=other)}, part)


@pytest.mark.parametrize(
    "value", [np.random, 3, random.SystemRandom(), torch.rand], ids=["module", "int", "system", "function"]
)
def test_what_is_no_generator_is_refused(value: Any) -> None:
    """At construction."""
    with pytest.raises(ConfigError, match="stream 'g' is a"):
        Streams(g=value)


def test_names_tell_all_streams() -> None:
    """For messages and audits."""
    assert Streams(noise=torch.Generator()).names[:4] == ["numpy", "own:noise", "python", "torch"]


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() and os.environ.get("TRAJLOAD_REQUIRE_GPU") != "1", reason="needs a CUDA device"
)
def test_cuda_streams_go_on(store: Store, kept: Any) -> None:
    """Every device's generator, and one's own on a device."""
    generator = torch.Generator("cuda").manual_seed(3)
    torch.rand(1, device="cuda")
    part = kept.keep(store, {"rng": Streams(g=generator)})
    expected = [torch.rand(2, device="cuda").tolist(), torch.rand(2, device="cuda", generator=generator).tolist()]
    restore({"rng": Streams(g=generator)}, part)
    assert [
        torch.rand(2, device="cuda").tolist(),
        torch.rand(2, device="cuda", generator=generator).tolist(),
    ] == expected
