"""A data set and a network whose masks, predictions and scores can be worked out by hand."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch import Tensor, nn

from template.data.module import Case, SegmentationData, Split
from template.models.segmenter import Segmenter
from template.quiet import silence_known

HEIGHT, WIDTH = 6, 10


class Stripes(SegmentationData):
    """Images [1, 6, 10] whose left 4 columns are bright; labelled 1 are the left 3."""

    def __init__(self, *, train: int = 5, val: int = 3, test: int = 3, depth: int | None = None, **kwargs: Any) -> None:
        super().__init__(classes=["background", "stripe"], num_workers=0, **{"batch_size": 2, **kwargs})
        self.counts: dict[Split, int] = {"train": train, "val": val, "test": test}
        self.depth = depth

    def cases(self, split: Split) -> list[Case]:
        return [Case(f"{split}_{number}", number) for number in range(self.counts[split])]

    def read(self, case: Case) -> tuple[Tensor, Tensor | None]:
        size = (HEIGHT, WIDTH) if self.depth is None else (self.depth, HEIGHT, WIDTH)
        image, mask = torch.zeros(1, *size), torch.zeros(size, dtype=torch.uint8)
        image[..., :4], mask[..., :3] = 1, 1
        if self.depth is not None:  # only slice 2 shows anything
            image[:, :2], image[:, 3:], mask[:2], mask[3:] = 0, 0, 0, 0
        return image, mask

    def display(self, image: Tensor) -> Tensor:
        return (image * 200).to(torch.uint8).expand(3, -1, -1)


class Bright(nn.Module):
    """Predicts label 1 where the image is above one half; counts how often it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.calls = 0

    def forward(self, image: Tensor) -> Tensor:
        self.calls += 1
        return torch.cat([torch.full_like(image, 0.5), image], dim=1) * self.scale


def segmenter() -> Segmenter:
    """Trains, but so slowly that its predictions stay what they are."""
    return Segmenter(Bright(), 2, 1, optimizer=partial(torch.optim.SGD, lr=1e-6), channels_last=False)


def trainer(*callbacks: Any, **kwargs: Any) -> Trainer:
    """A quiet Trainer on the CPU, as the command line makes it."""
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "callbacks": list(callbacks),
    }
    return Trainer(**{**settings, **kwargs})


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide what the command line hides as well."""
    with warnings.catch_warnings():
        silence_known()
        yield
