"""What a notebook shows of the objects that users hold: what they are, and what they were made with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trajload as tl


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (tl.Window(num_steps=16), "Window(num_steps=16)"),
        (
            tl.Window(pad="edge", delta_indices={"action": range(50)}),
            "Window(pad='edge', delta_indices={'action': range(0, 50)})",
        ),
        (tl.Image(), "Image()"),
        (tl.Image(size=(64, 48), align="previous"), "Image(align='previous', size=(64, 48))"),
        (tl.Signal(tolerance_s=0.0), "Signal(tolerance_s=0.0)"),
        (tl.Every(steps=5), "Every(steps=5)"),
        (tl.Keep(best="min:loss"), "Keep(best='min:loss')"),
        (tl.Source("data", weight=0.5), "Source(dataset='data', weight=0.5)"),
        (tl.Source("data", weight=1.0, rename={"a": "b"}), "Source(dataset='data', weight=1.0, rename={'a': 'b'})"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_show_what_differs_from_their_defaults(value: object, shown: str) -> None:
    """As Python that makes them again."""
    assert repr(value) == shown
    assert repr(eval(shown, {name: getattr(tl, name) for name in ("Window", "Image", "Signal", "Every", "Keep", "Source")})) == shown  # fmt: skip


def test_an_array_in_place_of_a_default_is_shown() -> None:
    """It is not compared element by element."""
    assert repr(tl.Source("data", weight=1.0, episodes=np.array([0, 1]))) == (
        "Source(dataset='data', weight=1.0, episodes=array([0, 1]))"
    )


def test_a_stream_spec_shows_what_is_declared() -> None:
    """Name, modality, encoding, shape and dtype always; the rest where it is set."""
    spec = tl.StreamSpec(name="imu", modality="action", encoding="npy", shape=(3,), dtype="float32", clock="clocked")  # type: ignore[arg-type]
    assert repr(spec) == (
        "StreamSpec(name='imu', modality=<Modality.ACTION: 'action'>, encoding='npy', shape=(3,), dtype='float32', "
        "clock='clocked')"
    )


def test_a_dataset_lists_its_streams(demo_dataset: Path) -> None:
    """`print` and notebooks show a line for each stream; the repr is one line, for messages."""
    dataset = tl.open(demo_dataset)
    lines = str(dataset).splitlines()
    assert lines[0] == (
        f"{dataset.name!r} (native): {len(dataset)} episodes, {dataset.num_steps} steps at 30 Hz, in {dataset.path}"
    )
    assert [line.split()[0] for line in lines[1:]] == list(dataset.streams)
    (depth,) = (line for line in lines if line.startswith("  depth"))
    assert depth.split("  ") != depth and "uint16" in depth and "own clock 15 Hz" in depth and depth.endswith("mkv")
    assert repr(dataset).count("\n") == 0 and len(dataset.notes) == 0
    shown: list[str] = []
    dataset._repr_pretty_(type("Printer", (), {"text": lambda self, text: shown.append(text)})(), False)
    assert shown == [str(dataset)]


def test_what_holds_a_dataset_or_a_store_names_it(demo_dataset: Path, tmp_path: Path) -> None:
    """Loaders, writers, normalizers and checkpoints say what they are of."""
    dataset = tl.open(demo_dataset)
    normalizer = tl.Normalizer.from_dataset(dataset, {"action": "mean_std", "reward": "min_max"})
    assert repr(normalizer) == (
        f"<Normalizer 'action' by mean_std, 'reward' by min_max; statistics of dataset {dataset.digest[:12]}…>"
    )
    with tl.Writer(tmp_path / "out", streams=[dataset.spec("action")], step_rate_hz=30) as writer:
        writer.add_episode({"action": np.zeros((4, 2), np.float32)})
        assert repr(writer) == f"<Writer {str(tmp_path / 'out')!r} (open): 1 episodes, streams action>"
    assert "(closed)" in repr(writer)
    with tl.Loader(dataset, window=tl.Window(num_steps=8), global_batch_size=4, streams=["action"]) as loader:
        dataloader = loader.as_dataloader(steps_per_epoch=3)
        assert repr(dataloader) == f"<TrajDataLoader of {loader!r}: 3 train_steps a pass, num_workers=0>"
        noise = np.random.Generator(np.random.PCG64(7))
        where = tmp_path / "checkpoints"
        with tl.Checkpointer(where, {"loader": loader}, rng=tl.Streams(noise=noise), every=tl.Every(steps=5)) as ckpt:
            assert repr(ckpt) == f"<Checkpointer {str(where)!r}: loader, rng; Every(steps=5), Keep()>"
            assert repr(tl.checkpoint.open(where)) == f"<Store {str(where)!r}>"
        assert repr(tl.Streams(noise=noise)) == "Streams(noise=Generator)"
