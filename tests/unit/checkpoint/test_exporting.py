"""An export is a folder that other tools read, and two checkpoints are told apart by component, tensor and field."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from damaging import flip
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

from trajload.checkpoint.diff import diff_parts
from trajload.checkpoint.exporting import export
from trajload.checkpoint.new_folder import publish_folder
from trajload.checkpoint.store import Store
from trajload.checkpoint.streams import Streams
from trajload.checkpoint.tensors import tensor_chunks
from trajload.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError, ConfigError

pytestmark = [pytest.mark.global_rng, pytest.mark.usefixtures("one_thread")]


def tied() -> nn.ModuleDict:
    model = nn.ModuleDict(
        {"embed": nn.Embedding(50, 16), "head": nn.Linear(16, 50, bias=False), "norm": nn.LayerNorm(16)}
    )
    model["head"].weight = model["embed"].weight
    return model.bfloat16()


def test_an_export_is_read_by_the_formats_own_loader(store: Store, kept: Any, tmp_path: Path) -> None:
    """Equal tensors, tied weights once and tied again, config.json as given, and where it came from."""
    model = tied()
    part = kept.keep(store, {"model": model, "optim": torch.optim.SGD(model.parameters())})
    done = export(part, tmp_path / "out", config={"model_type": "tiny", "hidden_size": 16})
    assert done.files == ("config.json", "model.safetensors") and done.left_out == ()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == list(done.files)
    assert done.bytes == sum(p.stat().st_size for p in (tmp_path / "out").iterdir())
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"model_type": "tiny", "hidden_size": 16}
    again = tied()
    load_model(again, tmp_path / "out" / "model.safetensors")
    kept.assert_same(dict(model.state_dict()), dict(again.state_dict()))
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "embed.weight", "trajload.part": part.summary.digest}
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_large_models_are_divided_with_an_index(store: Store, kept: Any, tmp_path: Path) -> None:
    """Numbered files and an index that names the file of each weight."""
    model = nn.Sequential(*(nn.Linear(20, 20) for _ in range(5)))
    export(kept.keep(store, {"model": model}), tmp_path / "out", max_file_bytes=4000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{i:05d}-of-00003.safetensors" for i in range(1, 4)]
    assert index["metadata"]["total_size"] == 5 * 420 * 4
    found = {}
    for file in files:
        tensors = load_file(tmp_path / "out" / file)
        assert {index["weight_map"][name] for name in tensors} == {file}
        found.update(tensors)
    kept.assert_same(dict(model.state_dict()), {name: found[name] for name in model.state_dict()})


def test_a_prefix_is_taken_off(store: Store, kept: Any, tmp_path: Path) -> None:
    """The average of an AveragedModel is exported under the names of the model; what lacks the prefix is told."""
    model = nn.Sequential(nn.Linear(3, 3))
    part = kept.keep(store, {"ema": torch.optim.swa_utils.AveragedModel(model)})
    done = export(part, tmp_path / "out", component="ema", prefix="module.")
    assert done.left_out == ("n_averaged",)
    nn.Sequential(nn.Linear(3, 3)).load_state_dict(load_file(done.folder / "model.safetensors"))
    assert json.loads((done.folder / "config.json").read_text()) == {"architectures": ["AveragedModel"]}
    with pytest.raises(ConfigError, match=r"prefix='x\.' fits no tensor of component 'ema': it has \['n_averaged', "):
        export(part, tmp_path / "none", component="ema", prefix="x.")


@dataclass
class Settings:
    width: int = 3


class HasToDict:
    def to_dict(self) -> dict[str, Any]:
        return {"width": 3}


def test_configurations_of_many_kinds_are_written(store: Store, kept: Any, tmp_path: Path) -> None:
    """A mapping, a dataclass, an object with to_dict(), the path of a JSON file."""
    part = kept.keep(store, {"model": nn.Linear(1, 1)})
    (tmp_path / "c.json").write_text('{"width": 3}')
    for i, config in enumerate(({"width": 3}, Settings(), HasToDict(), tmp_path / "c.json")):
        folder = export(part, tmp_path / str(i), config=config).folder
        assert json.loads((folder / "config.json").read_text()) == {"width": 3}
    for bad, words in (
        (3, "config is a int"),
        ({"x": float("nan")}, "written as JSON"),
        ({"x": {1}}, "written as JSON"),
    ):
        with pytest.raises(ConfigError, match=words):
            export(part, tmp_path / "bad", config=bad)
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        export(part, tmp_path / "bad", config=tmp_path / "absent.json")
    assert not (tmp_path / "bad").exists()


def test_only_safe_files_go_beside(store: Store, kept: Any, tmp_path: Path) -> None:
    """A tokenizer is copied; a pickle is refused by its name and by its bytes; nothing is overwritten."""
    part = kept.keep(store, {"model": nn.Linear(1, 1)})
    (tmp_path / "tokenizer.json").write_text("{}")
    adapter = {"n" * 1062: torch.ones(3)}  # a header of 0x0480 bytes, as a pickle begins
    (tmp_path / "adapter.safetensors").write_bytes(b"".join(tensor_chunks(adapter)))
    assert (tmp_path / "adapter.safetensors").read_bytes()[:2] == b"\x80\x04"
    done = export(part, tmp_path / "out", extra=[tmp_path / "tokenizer.json", tmp_path / "adapter.safetensors"])
    assert "tokenizer.json" in done.files and (done.folder / "tokenizer.json").read_text() == "{}"
    torch.save({}, tmp_path / "hidden.dat")
    torch.save({}, tmp_path / "hidden.safetensors")
    (tmp_path / "weights.bin").write_bytes(b"x")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointMismatchError, match=r"hidden\.dat is a zip"):
        export(part, tmp_path / "no", extra=[tmp_path / "hidden.dat"])
    with pytest.raises(CheckpointMismatchError, match=r"hidden\.safetensors is a zip"):
        export(part, tmp_path / "no", extra=[tmp_path / "hidden.safetensors"])
    for name, words in (
        ("weights.bin", "may hold a pickle"),
        ("config.json", "names of the export's own"),
        ("gone", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=words):
            export(part, tmp_path / "no", extra=[tmp_path / name])
    assert not (tmp_path / "no").exists() and not list(tmp_path.glob(".*"))


def test_an_export_never_overwrites_and_never_is_half(store: Store, kept: Any, tmp_path: Path) -> None:
    """A folder with something in it is refused; a damaged checkpoint leaves no folder; an empty one is taken."""
    part = kept.keep(store, {"model": nn.Linear(4, 4)})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(ConfigError, match="exists and is not empty"):
        export(part, tmp_path / "full")
    (tmp_path / "empty").mkdir()
    assert export(part, tmp_path / "empty").files
    with pytest.raises(CheckpointMismatchError, match="no component 'other'"):
        export(part, tmp_path / "out", component="other")
    flip(part.path("model.safetensors"), -1)
    with pytest.raises(CheckpointCorruptError, match="is damaged"):
        export(part, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_killed_export_left_goes_with_the_next_of_its_name(tmp_path: Path) -> None:
    """Not what a living one is writing, and nothing of another name."""
    target, left = tmp_path / "new" / "out", []
    for name in ("out.00000001", "out.00000002", "other.00000001", "out.notes"):
        left.append(tmp_path / "new" / f".{name}.tmp")
        left[-1].mkdir(parents=True)
        (left[-1] / "model.safetensors").write_bytes(b"half")
    fd = os.open(left[1], os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert publish_folder(target, {"model.safetensors": [b"who", b"le"]}) == 5
    os.close(fd)
    assert sorted(target.parent.iterdir()) == sorted([*left[1:], target])
    assert (target / "model.safetensors").read_bytes() == b"whole"


def test_an_export_takes_the_place_of_an_empty_folder_and_of_no_other(tmp_path: Path) -> None:
    """Also behind a link; of two that make the same folder at once the second is refused, and leaves nothing."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    publish_folder(Path(os.path.realpath(tmp_path / "link")), {"a": [b"1"]})

    def pieces() -> Iterator[bytes]:
        publish_folder(tmp_path / "taken", {"a": [b"first"]})
        yield b"second"

    with pytest.raises(CheckpointError, match=r"export to .*taken' failed: Directory not empty"):
        publish_folder(tmp_path / "taken", {"a": pieces()})
    assert (tmp_path / "empty" / "a").read_bytes() == b"1" and (tmp_path / "taken" / "a").read_bytes() == b"first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link", "taken"]


def test_a_dtype_that_others_cannot_read_is_refused(store: Store, kept: Any, tmp_path: Path) -> None:
    """Nothing is written that only we could read."""
    part = kept.keep(store, {"model": nn.ParameterList([torch.zeros(2, dtype=torch.complex128)])})
    with pytest.raises(CheckpointError, match="is complex128, which other readers do not know"):
        export(part, tmp_path / "out")


def test_transformers_reads_an_export(store: Store, kept: Any, tmp_path: Path) -> None:
    """`from_pretrained` gives the model, tied weights included."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    done = export(kept.keep(store, {"model": model}), tmp_path / "out", config=model.config)
    again = transformers.LlamaForCausalLM.from_pretrained(done.folder)
    kept.assert_same(dict(model.state_dict()), dict(again.state_dict()))


# ---- differences ----


def test_equal_checkpoints_have_no_differences(store: Store, kept: Any) -> None:
    """The same state, saved twice."""
    state = {"model": tied(), "rng": Streams(), "n": {"x": 1}}
    assert diff_parts(kept.keep(store, state), kept.keep(store, state)) == []


def test_differences_are_told_by_component_tensor_and_field(store: Store, kept: Any) -> None:
    """Values with count and size, shapes, dtypes, names, fields at any depth, classes, whole components."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    n: dict[Any, Any] = {"deep": [{"x": 1}, (2, 3)], 7: "seven", "t": torch.zeros(2), "same": torch.ones(1)}
    first = kept.keep(store, {"model": model, "optim": optim, "n": n, "old": {"a": 1}, "same": {"t": torch.ones(3)}})
    with torch.no_grad():
        model[0].bias[1] += 0.5
    optim.param_groups[0]["lr"] = 0.01
    n["deep"][0]["x"], n["deep"][1], n[7], n["new"] = 2, (2, 4), "eight", 1
    n["t"] = torch.zeros(2, dtype=torch.int32)
    state = {"model": model, "optim": optim, "n": n, "new": {"a": 1}, "same": {"t": torch.ones(3)}}
    found = diff_parts(first, kept.keep(store, state))
    assert [str(d) for d in found if d.component == "model"] == [
        "model: 0.bias: values: 1 of 3 elements, by at most 0.5"
    ]
    assert {(d.component, d.path, d.kind, d.a, d.b) for d in found if d.component != "model"} == {
        ("optim", "param_groups[0].lr", "field", "0.1", "0.01"),
        ("n", "t", "dtype", "float32 [2]", "int32 [2]"),
        ("n", "deep[0].x", "field", "1", "2"),
        ("n", "deep[1][1]", "field", "3", "4"),
        ("n", "[7]", "field", "'seven'", "'eight'"),
        ("n", "new", "only in b", "", "1"),
        ("old", "", "only in a", "", ""),
        ("new", "", "only in b", "", ""),
    }
    assert found[0].to_json().keys() == {"component", "path", "kind", "a", "b"}


def test_another_model_is_told_by_names_and_shapes(store: Store, kept: Any) -> None:
    """Checkpoints of two programs can be compared."""
    first = kept.keep(store, {"m": nn.Linear(2, 3)})
    second = kept.keep(store, {"m": nn.Sequential(nn.Linear(2, 3))})
    assert [(d.path, d.kind) for d in diff_parts(first, second)] == [
        ("", "class"), ("weight", "only in a"), ("bias", "only in a"), ("0.weight", "only in b"), ("0.bias", "only in b"),
    ]  # fmt: skip


def test_a_damaged_file_is_no_difference(store: Store, kept: Any) -> None:
    """Damage is an error, not a value."""
    first, second = kept.keep(store, {"m": nn.Linear(2, 3)}), kept.keep(store, {"m": nn.Linear(2, 3)})
    path = second.path("m.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    with pytest.raises(CheckpointCorruptError, match="is damaged"):
        diff_parts(first, second)
