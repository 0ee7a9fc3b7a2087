"""Base classes that LeRobotDataset's augmentations subclass."""

from torch import nn
from torchvision.transforms import functional

__all__ = ["Compose", "Identity", "Transform", "functional"]


class Transform(nn.Module):
    pass


class Identity(Transform):
    def forward(self, value: object) -> object:
        return value


class Compose(Transform):
    def __init__(self, transforms: list) -> None:
        super().__init__()
        self.transforms = transforms

    def forward(self, value: object) -> object:
        for transform in self.transforms:
            value = transform(value)
        return value
