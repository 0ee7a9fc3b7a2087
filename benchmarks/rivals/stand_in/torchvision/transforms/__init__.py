"""Names that LeRobotDataset imports for optional augmentation; the benchmarks use none of them."""

from torchvision.transforms import functional, v2

__all__ = ["ToTensor", "functional", "v2"]


class ToTensor:
    def __call__(self, picture: object) -> object:
        return functional.to_tensor(picture)
