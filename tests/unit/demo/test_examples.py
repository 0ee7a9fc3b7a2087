"""The examples run as they stand."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from by_path import load

from trajload.demo import EpisodeLength, generate

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def example(name: str) -> ModuleType:
    return load(EXAMPLES / f"{name}.py")


def test_training_example_stopped_and_run_again_ends_with_the_same_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six train_steps at once, or four and then two more: the same loss, to the last bit."""
    dataset = generate(tmp_path / "dataset", num_episodes=2, length=EpisodeLength(20, 30))
    train = example("train_world_model")

    def run(folder: str, train_steps: int) -> float:
        options = ["--train-steps", str(train_steps), "--checkpoint-every", "2"]
        return train.main([str(dataset), str(tmp_path / folder), *options])

    whole = run("whole", 6)
    run("parts", 4)
    assert "continuing" not in capsys.readouterr().out
    assert run("parts", 6).hex() == whole.hex()
    assert "continuing at train_step 4" in capsys.readouterr().out


def test_writing_example_writes_what_it_says(tmp_path: Path) -> None:
    """Three episodes of growing length, with a camera, an action, a clocked sensor and an instruction."""
    dataset = example("write_dataset").main([str(tmp_path / "circles")])
    assert dataset.num_steps_E.tolist() == [40, 50, 60]
    assert list(dataset.streams) == ["camera", "action", "imu", "instruction"]
