"""Names that MosaicML Streaming subclasses for its image data sets; the benchmarks use none of those."""


class VisionDataset:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError("this is a stand-in for torchvision: VisionDataset is not part of it.")
