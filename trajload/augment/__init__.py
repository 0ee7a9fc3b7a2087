"""Augmentation and normalisation of one window, replayable: every draw is a function of (seed, epoch, window, place).

contract.py  what a transform is, what a batch's layout is, and how a transform is named in a saved state
chain.py     several transforms run over one window, each checked
base.py      what the provided transforms share: which streams they take, and how draws are shared
geometry.py  RandomCrop, RandomFlip, Resize
colour.py    ColorJitter, GaussianBlur
steps.py     FrameDrop, ActionNoise
normalizer.py  Normalizer: invertible scaling by a dataset's statistics
"""
