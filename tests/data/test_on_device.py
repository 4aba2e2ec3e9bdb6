"""Augmentation in the training process gives what the loader's workers would have given."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from lightning import Trainer, seed_everything
from torch import Tensor, nn
from torchvision.transforms import v2

from template.callbacks.probe import ProbeStep
from template.data.dataset import Case
from template.data.module import SegmentationData, Split
from template.data.on_device import Unaugmented, augmented
from template.data.transforms import RandomIntensity, RandomWarp, Standardize
from template.distributed.faults import NamedError
from template.distributed.strategy import SafeDDPStrategy
from template.models.segmenter import Segmenter
from template.quiet import silence_known
from tests.ranks import run_ranks

On = Literal["cpu", "device"]


class Pictures(SegmentationData):
    """Two classes; each image has its own size, and its values lie in memory as in a file of colours."""

    def cases(self, split: Split) -> list[Case]:
        return [Case(f"{split}_{number}", number) for number in range({"train": 8, "val": 2, "test": 1}[split])]

    def read(self, case: Case) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(case.source)
        size = (20 + case.source, 24)
        image = torch.rand(*size, 3, generator=random).permute(2, 0, 1)
        return image, (torch.rand(size, generator=random) > 0.5).to(torch.uint8)


def augmentation() -> list[nn.Module]:
    """Draws of all kinds: places, strengths, noise; and a colour transform whose sums depend on the order in memory."""
    return [
        RandomWarp(degrees=20, crop=[16, 16], elastic=0.05, horizontal_flip=0.5),
        v2.ColorJitter(contrast=0.5),
        RandomIntensity(gamma=0.3, contrast=0.2, noise=0.1),
    ]


def pictures(on: On, kind: type[Pictures] = Pictures, **settings: Any) -> Pictures:
    return kind(
        classes=["background", "organ"],
        in_channels=3,
        batch_size=4,
        preprocess=[Standardize()],
        augment_on=on,
        seed=0,
        **{"num_workers": 0, "augment": augmentation(), **settings},
    )


class OwnLoader(Pictures):
    """Gets the loader from its base, and would change something of it."""

    def train_dataloader(self) -> Any:
        return super().train_dataloader()


class Keeps(Segmenter):
    """Keeps the batches of its training steps."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.__dict__.setdefault("batches", []).append(batch)


def fit(
    rank: int, world_size: int, folder: str, on: On, workers: int = 0, precision: Any = "32-true", **settings: Any
) -> Any:
    """Train two epochs of two steps; returns images, masks and names of each step, and the weights."""
    silence_known()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, workers=True, verbose=False)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(4, 2, 1))
    module = Keeps(net, 2, 3)
    trainer = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=SafeDDPStrategy() if world_size > 1 else "auto",
        precision=precision,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[ProbeStep()] if world_size == 1 else [],
        default_root_dir=folder,
    )
    trainer.fit(module, datamodule=pictures(on, num_workers=workers, **settings))
    steps = [(batch["image"], batch["mask"], [case.name for case in batch["case"]]) for batch in module.batches]
    return steps, module.state_dict()


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize(("workers", "precision"), [(0, "32-true"), (2, "32-true"), (0, "64-true")])
def test_on_the_cpu_the_bits_are_the_same(workers: int, precision: str, tmp_path: Path) -> None:
    cpu = fit(0, 1, str(tmp_path), "cpu", precision=precision)
    device = fit(0, 1, str(tmp_path), "device", workers, precision)
    assert [len(step[0]) for step in cpu[0]] == [4, 4, 4, 4]
    assert equal(device, cpu)


def test_a_loader_of_ones_own_may_be_that_of_the_base(tmp_path: Path) -> None:
    expected = fit(0, 1, str(tmp_path), "cpu")
    assert equal(fit(0, 1, str(tmp_path), "device", kind=OwnLoader), expected)


@pytest.mark.slow
def test_two_processes_augment_the_samples_of_one(tmp_path: Path) -> None:
    alone = fit(0, 1, str(tmp_path), "cpu")[0]
    shares = [steps for steps, _ in run_ranks(2, fit, 2, str(tmp_path), "device")]
    for step, parts in zip(alone, zip(*shares, strict=True), strict=True):
        assert torch.equal(torch.cat([part[0] for part in parts]), step[0])
        assert torch.equal(torch.cat([part[1] for part in parts]), step[1])
        assert sum((part[2] for part in parts), []) == step[2]


def unaugmented(**settings: Any) -> Unaugmented:
    data = pictures("device", **settings)
    dataset = data._dataset(data.cases("train"), data.augment)
    dataset.defers = True
    return Unaugmented([dataset[0, 0], dataset[0, 1]])


def test_workers_leave_samples_as_preprocess_makes_them() -> None:
    samples = unaugmented().samples
    assert [list(sample["image"].shape) for sample in samples] == [[3, 20, 24], [3, 21, 24]]
    assert [sample["key"] for sample in samples] == [(0, 0), (0, 1)]
    assert not hasattr(samples[0]["image"], "wrap")  # a plain tensor, which any loader moves


def test_random_numbers_of_training_are_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    augmented(unaugmented(), augmentation(), 0)
    assert torch.equal(torch.rand(2), expected)


def test_sizes_that_differ_at_the_end_are_named() -> None:
    with pytest.raises(NamedError, match="'train_0' has the shape .*20, 24. and 'train_1' .*21, 24.") as error:
        augmented(unaugmented(augment=[]), [], 0)
    assert error.value.identifier == "sizes-differ"


def test_a_transform_that_fails_is_named() -> None:
    class Fails(nn.Module):
        def forward(self, sample: Any) -> Any:
            raise ValueError("too small")

    with pytest.raises(NamedError, match=r"data.augment\[0\], Fails, fails on 'train_0' .*too small") as error:
        augmented(unaugmented(), [Fails()], 0)
    assert error.value.identifier == "transform"


def test_evaluation_is_as_before(tmp_path: Path) -> None:
    data = pictures("device")
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path)
    trainer.datamodule, data.trainer = data, trainer  # type: ignore[attr-defined]
    groups = next(iter(data.val_dataloader()))
    assert [set(group) for group in groups] == [{"image", "mask", "case", "size"}] * 2


def test_it_reaches_the_training_process_whole() -> None:
    batch = unaugmented()
    again = pickle.loads(pickle.dumps(batch))
    moved = again.to(torch.device("cpu"))
    assert equal([{**one} for one in moved.samples], batch.samples)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_places_and_strengths() -> None:
    quiet = [*augmentation()[:2], RandomIntensity(gamma=0.3, contrast=0.2)]
    batch, device = unaugmented(), torch.device("cuda", 0)
    cpu, gpu = augmented(batch, quiet, 0), augmented(batch.pin_memory().to(device), quiet, 0)
    torch.testing.assert_close(gpu["image"].cpu(), cpu["image"], atol=1e-3, rtol=1e-3)
    assert (gpu["mask"].cpu() == cpu["mask"]).double().mean() > 0.99  # a place may round to the next pixel


@pytest.mark.gpu
def test_a_gpu_repeats_its_noise_and_leaves_dropout_alone() -> None:
    batch = unaugmented().to(torch.device("cuda", 0))
    torch.cuda.manual_seed(1)
    before = torch.cuda.get_rng_state()
    first = augmented(batch, augmentation(), 0)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.rand(5, device="cuda")
    assert torch.equal(first["image"], augmented(batch, augmentation(), 0)["image"])
