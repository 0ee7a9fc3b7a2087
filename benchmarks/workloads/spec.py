"""The data sets and workloads as values: everything else in `benchmarks/` reads them from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FPS = 30


@dataclass(frozen=True, kw_only=True)
class Data:
    """One generated data set. All episodes are equally long; frames and signals follow from the episode number alone."""

    name: str
    folder: str
    num_episodes: int
    num_steps: int
    cameras: tuple[str, ...] = ()
    height: int = 0
    width: int = 0
    codec: str = "h264"
    gop: int = 10
    crf: int = 23
    signals: Mapping[str, int] = field(default_factory=dict)
    """name → number of float32 values a step; the first two are episode and step where there are at least two."""

    def root(self, data: Path) -> Path:
        return data / self.folder

    def mp4(self, data: Path, camera: str, episode: int) -> Path:
        """Return the loose file of an episode: the very bytes of the native data set."""
        folder = self.root(data) / "files"
        return (folder if len(self.cameras) == 1 else folder / camera) / f"{episode:05d}.mp4"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of example, asked of every loader alike."""

    name: str
    data: Data
    batch: int
    frame_steps: int = 0
    """Frames of each camera, from the window's first step on."""
    signal_steps: Mapping[str, int] = field(default_factory=dict)
    """signal → its steps, from the window's first step on. Signals not named are not delivered."""
    size: tuple[int, int] | None = None
    """(height, width) the pictures are resized to; None leaves them."""

    @property
    def cameras(self) -> tuple[str, ...]:
        return self.data.cameras if self.frame_steps else ()

    @property
    def span(self) -> int:
        """Steps from the first to the last one needed: a window starts at most at `num_steps - span`."""
        return max([self.frame_steps, *self.signal_steps.values()])

    @property
    def starts(self) -> int:
        """Windows of one episode."""
        return self.data.num_steps - self.span + 1

    @property
    def num_windows(self) -> int:
        return self.data.num_episodes * self.starts

    @property
    def setting(self) -> str:
        """One line for people."""
        parts = [f"batch {self.batch}"]
        if self.cameras:
            what = f"{self.frame_steps} frame{'s' * (self.frame_steps > 1)} of {len(self.cameras)} camera{'s' * (len(self.cameras) > 1)}"
            parts.append(
                f"{what}, {self.data.height}x{self.data.width} {self.data.codec} GOP {self.data.gop} crf {self.data.crf}"
            )
        if self.size:
            parts.append(f"resized to {self.size[0]}x{self.size[1]}")
        parts += [f"{steps} steps of {name} ({self.data.signals[name]})" for name, steps in self.signal_steps.items()]
        return ", ".join([*parts, f"{self.data.num_episodes} episodes of {self.data.num_steps} steps"])


VIDEO240 = Data(
    name="video240", folder="h264_240x320", num_episodes=40, num_steps=300, cameras=("cam",), height=240, width=320
)
VIDEO64 = Data(
    name="video64", folder="h264_64x64", num_episodes=40, num_steps=300, cameras=("cam",), height=64, width=64
)
POLICY = Data(
    name="policy",
    folder="av1_480x640",
    num_episodes=20,
    num_steps=150,
    cameras=("left", "right"),
    height=480,
    width=640,
    codec="av1",
    gop=2,
    crf=30,
    signals={"state": 14, "action": 14},
)
STATE = Data(
    name="state", folder="state", num_episodes=2000, num_steps=250, signals={"obs": 17, "action": 6, "reward": 1}
)

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="video240", data=VIDEO240, batch=16, frame_steps=16),
        Workload(name="video128", data=VIDEO240, batch=16, frame_steps=16, size=(128, 128)),
        Workload(name="video64", data=VIDEO64, batch=16, frame_steps=64),
        Workload(name="policy", data=POLICY, batch=16, frame_steps=1, signal_steps={"state": 1, "action": 50}),
        Workload(name="state", data=STATE, batch=256, signal_steps={"obs": 32, "action": 32, "reward": 32}),
    )
}
