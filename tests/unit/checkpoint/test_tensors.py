"""Tensor files: every dtype and shape, the layout other readers expect, the size foretold, and damage that is noticed."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_with_safetensors

from trajload.checkpoint.tensor_file import TensorFile
from trajload.checkpoint.tensors import FORMAT_NAMES, plan_layout, planned_bytes, tensor_chunks
from trajload.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError

NEWER = ("uint4", "int2", "bits8", "float8_e8m0fnu")  # not in every torch
RAW = [torch.complex128, *(getattr(torch, name) for name in NEWER if hasattr(torch, name))]


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Return a tensor of random bits."""
    count = int(torch.Size(shape).numel()) * dtype.itemsize
    noise = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), generator=torch.Generator().manual_seed(seed))
    return noise.to(torch.uint8).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    data = b"".join(tensor_chunks(tensors))
    assert len(data) == planned_bytes(tensors)
    path.write_bytes(data)
    return path


def read(path: Path) -> dict[str, torch.Tensor]:
    with TensorFile(path) as file:
        return file.read()


@pytest.mark.parametrize("dtype", [*FORMAT_NAMES, *RAW], ids=str)
def test_every_dtype_comes_back(tmp_path: Path, kept: Any, dtype: torch.dtype) -> None:
    """Bits of any dtype: full, transposed, with no dimensions, empty."""
    tensors = {"full": filled(dtype, (3, 5)), "scalar": filled(dtype, ()), "empty": filled(dtype, (0, 4))}
    tensors["transposed"] = filled(dtype, (4, 3), 1).T
    tensors["row"] = filled(dtype, (4, 3), 2)[:, 1]
    found = read(write(tmp_path / "t", tensors))
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        kept.assert_same(tensor, found[name], name)
    assert found["transposed"].stride() == tensors["transposed"].stride()


def test_other_readers_read_the_same(tmp_path: Path, kept: Any) -> None:
    """The file is a safetensors file: the format's own package reads every dtype it knows, equal."""
    tensors = {str(dtype): filled(dtype, (2, 3)) for dtype in FORMAT_NAMES}
    tensors["strided"] = filled(torch.float32, (2, 3, 4, 5)).to(memory_format=torch.channels_last)
    found = load_with_safetensors(write(tmp_path / "t", tensors).read_bytes())
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        kept.assert_same(tensor.contiguous(), found[name], name)


def test_files_of_others_are_read(tmp_path: Path, kept: Any) -> None:
    """A file that the safetensors package wrote is read like our own."""
    from safetensors.torch import save

    tensors = {"a": filled(torch.bfloat16, (3, 3)), "b": filled(torch.int64, ())}
    (tmp_path / "t").write_bytes(save(tensors))
    for name, tensor in read(tmp_path / "t").items():
        kept.assert_same(tensors[name], tensor)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_view_comes_back(tmp_path_factory: Any, kept: Any, data: st.DataObject) -> None:
    """Slices, steps, permutations, expansions of a tensor: the values, whatever the memory looks like."""
    base = filled(torch.float32, (4, 5, 6))
    dims = data.draw(st.permutations(range(3)))
    slices = tuple(slice(data.draw(st.integers(0, 3)), None, data.draw(st.integers(1, 3))) for _ in range(3))
    view = base.permute(*dims)[slices]
    if data.draw(st.booleans()):
        view = view.unsqueeze(0).expand(2, *view.shape)
    found = read(write(tmp_path_factory.mktemp("views") / "t", {"x": view}))["x"]
    kept.assert_same(view, found)


def test_memory_order_comes_back(tmp_path: Path) -> None:
    """channels_last stays channels_last: sums over it round as before."""
    image = filled(torch.float32, (2, 3, 4, 5)).to(memory_format=torch.channels_last)
    found = read(write(tmp_path / "t", {"image": image}))["image"]
    assert found.is_contiguous(memory_format=torch.channels_last) and torch.equal(
        found.nan_to_num(), image.nan_to_num()
    )


def test_names_of_one_tensor_stand_once_and_are_one_again(tmp_path: Path) -> None:
    """Tied weights cost their bytes once; views of one memory that are not the same tensor are two."""
    weight = torch.arange(1000.0)
    tensors = {"a": weight, "b": weight.view(1000), "half": weight[:500], "tail": weight[500:]}
    found = read(write(tmp_path / "t", tensors))
    assert plan_layout(tensors).names == ("a", "half", "tail")
    assert found["a"] is found["b"] and torch.equal(found["tail"], weight[500:])


def test_complex_views_are_resolved(tmp_path: Path, kept: Any) -> None:
    """A conjugate or negative view is its values."""
    z = filled(torch.complex64, (3,)).nan_to_num()
    found = read(write(tmp_path / "t", {"conj": z.conj(), "neg": z.conj().imag}))
    kept.assert_same(z.conj().resolve_conj(), found["conj"])
    kept.assert_same(z.conj().imag.resolve_neg(), found["neg"])


def test_only_wanted_tensors_are_read(tmp_path: Path) -> None:
    """A part of a file can be read by name."""
    path = write(tmp_path / "t", {"a": torch.ones(2), "b": torch.zeros(2)})
    with TensorFile(path) as file:
        assert list(file.read(["b"])) == ["b"]
        assert str(file.index.facts()["a"]) == "float32 [2]"


class Marked(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "tensor, words",
    [
        (torch.eye(2).to_sparse(), "sparse_coo tensor: expected a dense one"),
        (torch.zeros(2).as_subclass(Marked), "Marked: expected a plain torch.Tensor"),
        (torch.nn.parameter.UninitializedParameter(), "no shape yet"),
    ],
    ids=["sparse", "subclass", "lazy"],
)
def test_tensors_that_are_more_than_bytes_are_refused(tensor: torch.Tensor, words: str) -> None:
    """The message names the tensor and the way out."""
    with pytest.raises(CheckpointError, match=rf"^layer\.weight .*{words}"):
        plan_layout({"layer.weight": tensor})


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    """A file that ends anywhere before its end is no file."""
    data = b"".join(tensor_chunks({"a": torch.arange(5), "b": torch.zeros(3, dtype=torch.bfloat16)}))
    path = tmp_path / "t"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(CheckpointCorruptError, match="not a whole safetensors file"):
            TensorFile(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(CheckpointCorruptError, match="its header tells of 46"):
        TensorFile(path)


@pytest.mark.parametrize(
    "begin", [b"PK\x03\x04....", b"\x80\x02}q\x00...", b"\x80\x04\x95....."], ids=["zip", "pickle2", "pickle4"]
)
def test_a_pickle_is_told_as_one(tmp_path: Path, begin: bytes) -> None:
    """What torch.save wrote is not called a damaged file, and not loaded."""
    (tmp_path / "t").write_bytes(begin + bytes(100))
    with pytest.raises(CheckpointMismatchError, match=r"where safetensors was expected: .*never loaded"):
        TensorFile(tmp_path / "t")


def test_a_file_of_torch_save_is_told_as_one(tmp_path: Path) -> None:
    """The real thing, too."""
    torch.save({"a": torch.ones(2)}, tmp_path / "t")
    with pytest.raises(CheckpointMismatchError, match=r"a zip, as torch\.save writes it"):
        TensorFile(tmp_path / "t")


def test_headers_of_every_length_are_read(tmp_path: Path) -> None:
    """A header of 0x0480 bytes begins like a pickle of protocol 4, and is a header all the same."""
    seen = set()
    for length in range(400, 1500, 8):
        tensors = {"n" * length: torch.ones(3)}
        seen.add(len(plan_layout(tensors).header) - 8)
        assert torch.equal(read(write(tmp_path / "t", tensors))["n" * length], tensors["n" * length])
    assert {0x0280, 0x0380, 0x0480, 0x0580} <= seen


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_every_length_are_told_as_pickles(tmp_path: Path, protocol: int) -> None:
    """However long they are, and whatever stands in them."""
    for length in (0, 1, 7, 8, 100, 640, 1152, 70_000):
        for value in ({"{" * length: 1}, [b"{" * length], "{" * length, {"a": list(range(length))}):
            (tmp_path / "t").write_bytes(pickle.dumps(value, protocol=protocol))
            with pytest.raises(CheckpointMismatchError, match=r"a pickle where safetensors was expected"):
                TensorFile(tmp_path / "t")


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header, words",
    [
        ([], "no JSON object"),
        ({"a": 3}, "the entry of 'a'"),
        ({"a": {**GOOD, "dtype": "F99"}}, "the dtype 'F99'"),
        ({"a": {**GOOD, "shape": [3]}}, "has 8 bytes, not those of F32"),
        ({"a": {**GOOD, "shape": [-2]}}, "expected a list of sizes"),
        ({"a": {**GOOD, "shape": [True, 2]}}, "expected a list of sizes"),
        ({"a": {**GOOD, "data_offsets": [8, 0]}}, "not those of"),
        ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, "begins at byte 4 of the data, expected 0"),
        ({"a": GOOD, "b": GOOD}, "begins at byte 0 of the data, expected 8"),
        ({"a": GOOD, "__metadata__": 3}, "__metadata__ is no object"),
        ({"a": GOOD, "__metadata__": {"trajload": "{"}}, "__metadata__ cannot be read"),
        ({"a": GOOD, "__metadata__": {"trajload": '{"same":{"b":"c"}}'}}, "'b' is said to be the same tensor as 'c'"),
        ({"a": GOOD, "__metadata__": {"trajload": '{"strides":{"a":[2]}}'}}, r"cannot have the strides \[2\]"),
        ({"a": GOOD, "__metadata__": {"trajload": '{"raw":{"a":["load",[2]]}}'}}, "no dtype 'load'"),
        ({"a": GOOD, "__metadata__": {"trajload": '{"raw":{"a":["complex128",[1]]}}'}}, "F32 does not hold complex128"),
    ],
    ids=range(15),
)  # fmt: skip
def test_headers_that_lie_are_noticed(tmp_path: Path, header: Any, words: str) -> None:
    """Nothing of a header is believed that does not fit the file."""
    text = json.dumps(header).encode()
    (tmp_path / "t").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(CheckpointCorruptError, match=words):
        TensorFile(tmp_path / "t")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 7))
def test_a_flipped_bit_of_a_header_never_crashes(tmp_path_factory: Any, at: int, bit: int) -> None:
    """Reading ends in tensors (the digest tells that they are others) or in an error of ours."""
    data = bytearray(
        b"".join(
            tensor_chunks({"a": torch.arange(5), "b": torch.zeros(3, 2).T, "c": torch.zeros(1, dtype=torch.complex128)})
        )
    )
    data[at % len(data)] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.write_bytes(data)
    with contextlib.suppress(CheckpointError):
        read(path)
