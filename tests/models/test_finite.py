"""The watch over the loss: which samples it blames."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from template.data.dataset import Case
from template.distributed.faults import NamedError
from template.models.finite import LossWatch

NAN = float("nan")


def batch(values: list[float], labels: tuple[int, ...] = (0, 1, 255)) -> dict[str, Any]:
    return {
        "mask": torch.tensor(labels[: len(values)], dtype=torch.uint8).view(-1, 1, 1),
        "image": torch.tensor(values).view(-1, 1, 1, 1),
        "case": [Case(name, 0) for name in "abc"[: len(values)]],
    }


@pytest.mark.parametrize(
    ("images", "outputs", "blamed"),
    [
        ([1, NAN, 1], [NAN, NAN, NAN], "b, whose images are not finite."),
        ([1, 1, 1], [1, 1, NAN], "c, for which the network's output is not finite."),
        ([1, 1, 1], [1, 1, 1], "a, b, c."),
    ],
)
def test_the_samples_that_spoil_the_loss_are_named(images: list[float], outputs: list[float], blamed: str) -> None:
    with pytest.raises(NamedError) as caught:
        LossWatch().look(
            torch.tensor(NAN), torch.tensor(outputs).view(-1, 1, 1, 1).expand(-1, 2, -1, -1), batch(images), 7
        )
    assert caught.value.identifier == "loss-not-finite"
    assert caught.value.what == f"The loss is nan in step 7, at the samples {blamed}"


def test_masks_with_labels_that_are_no_class_are_named() -> None:
    with pytest.raises(NamedError) as caught:
        LossWatch().look(torch.tensor(NAN), torch.ones(3, 2, 1, 1), batch([1, 1, 1], (0, 2, 255)), 7)
    assert "b, whose masks have labels that are no class." in caught.value.what
    assert caught.value.identifier == "loss-not-finite"


def test_a_finite_loss_passes() -> None:
    watch = LossWatch()
    watch.look(torch.tensor(1.0), torch.tensor([[[[NAN]]]]), batch([1]), 0)
    watch.settle()


@pytest.mark.gpu
def test_on_a_gpu_the_run_ends_a_step_late_and_before_a_checkpoint() -> None:
    for late in (True, False):
        watch, output = LossWatch(), torch.ones(3, 2, 1, 1, device="cuda")
        one = batch([1, NAN, 1])
        one |= {"image": one["image"].cuda(), "mask": one["mask"].cuda()}
        watch.look(torch.tensor(NAN, device="cuda"), output, one, 7)
        with pytest.raises(NamedError, match="in step 7, at the samples b, whose images are not finite"):
            watch.look(torch.tensor(1.0, device="cuda"), output, one, 8) if late else watch.settle()
