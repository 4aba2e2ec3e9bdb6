"""Loaders of the data module."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from template.data.dataset import Case
from template.data.module import SegmentationData, Split
from template.distributed.faults import NamedError


class Numbers(SegmentationData):
    """Image i is filled with i."""

    def cases(self, split: Split) -> list[Case]:
        return [Case(f"{split}_{i}", i) for i in range({"train": 11, "val": 5, "test": 1}[split])]

    def read(self, case: Case) -> tuple[Tensor, Tensor]:
        return torch.full((1, 4, 4), float(case.source)), torch.zeros(4, 4, dtype=torch.uint8)


def numbers(rank: int = 0, world_size: int = 1, accumulation: int = 1, **settings: Any) -> Numbers:
    data = Numbers(**{"classes": ["background", "organ"], "batch_size": 4, "seed": 0, "num_workers": 0, **settings})
    data.trainer = SimpleNamespace(  # type: ignore[assignment]  # only what the loaders read
        global_rank=rank,
        world_size=world_size,
        accumulate_grad_batches=accumulation,
        num_devices=world_size,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    return data


@pytest.mark.parametrize("world_size", [1, 2])
def test_processes_together_train_on_the_same_batches(world_size: int) -> None:
    loaders = [numbers(rank, world_size).train_dataloader() for rank in range(world_size)]
    batches = [torch.cat([b["image"][:, 0, 0, 0] for b in parts]).tolist() for parts in zip(*loaders, strict=True)]
    alone = [b["image"][:, 0, 0, 0].tolist() for b in numbers().train_dataloader()]
    assert batches == alone
    assert [len(batch) for batch in alone] == [4, 4]


def test_validation_samples_are_dealt_once_and_in_the_micro_batch_size() -> None:
    shares = [[g["image"] for groups in numbers(r, 2).val_dataloader() for g in groups] for r in (0, 1)]
    assert [[int(n) for image in share for n in image[:, 0, 0, 0]] for share in shares] == [[0, 2, 4], [1, 3]]
    assert max(len(image) for share in shares for image in share) == 2


def test_a_rank_without_a_test_case_gets_an_empty_batch() -> None:
    assert list(numbers(1, 2).test_dataloader()) == [[]]


def test_loaders_leave_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    next(iter(numbers().train_dataloader()))
    assert torch.equal(torch.rand(1), expected)


def test_without_a_seed_of_its_own_the_run_s_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(seed: int | None) -> Any:
        return next(iter(numbers(seed=seed).train_dataloader()))["case"]

    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    assert first(None) == first(5) != first(0)


def test_a_failure_is_raised_in_the_training_process() -> None:
    with pytest.raises(NamedError, match="spoilt"):
        numbers().on_before_batch_transfer(NamedError("mask-values", "spoilt."), 0)


def test_a_copy_for_a_worker_leaves_the_trainer_behind() -> None:
    data = numbers()
    copy = pickle.loads(pickle.dumps(data))
    assert copy.trainer is None
    assert data.trainer is not None


def test_classes_and_regions_are_checked() -> None:
    assert numbers(classes=["background", "a", "b"]).regions == {"a": (1,), "b": (2,)}
    assert numbers(classes=["road", "sky"]).regions == {"road": (0,), "sky": (1,)}
    for wrong in ({"classes": ["liver"]}, {"classes": ["a", "a"]}, {"regions": {"liver": [1, 2]}}):
        with pytest.raises(NamedError) as caught:
            numbers(**wrong)
        assert caught.value.identifier == "config"


def test_a_data_set_without_files_says_so() -> None:
    with pytest.raises(NamedError, match="'new.png', but Numbers reads no files"):
        numbers(predict="new.png").predict_dataloader()
    with pytest.raises(NamedError, match="Numbers makes loaders for a Trainer"):
        Numbers(classes=["background", "organ"]).val_dataloader()


def test_masks_are_written_and_images_shown(tmp_path: Path) -> None:
    data = numbers()
    mask = torch.tensor([[0, 1], [1, 0]], dtype=torch.uint8)
    file = data.write(Case("slice_7", None), mask, tmp_path)
    assert file == tmp_path / "slice_7.png"
    with Image.open(file) as picture:
        assert picture.tobytes() == bytes([0, 1, 1, 0])
    grey = data.display(torch.linspace(-1000, 1000, 64).reshape(1, 8, 8))
    assert grey.shape == (3, 8, 8)
    assert (int(grey.min()), int(grey.max())) == (0, 255)


def test_a_volume_is_written_as_nifti(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    mask = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)
    file = numbers().write(Case("volume_7", None), mask, tmp_path)
    assert file == tmp_path / "volume_7.nii.gz"
    assert (nibabel.load(file).get_fdata() == mask.numpy()).all()


def test_a_volume_without_nibabel_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(NamedError, match=r"nibabel, which reads and writes NIfTI.*pip install '\.\[medical\]'"):
        numbers().write(Case("volume_7", None), torch.zeros(2, 3, 4, dtype=torch.uint8), tmp_path)
