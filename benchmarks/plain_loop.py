"""A training as one writes it by hand with another library: what benchmarks.quality compares with.

It sees the template's data: the same cases in the same splits, read by the same code, in the same window of Hounsfield
units. Everything else is what the libraries' own examples do: their network and their loss, AdamW at 1e-3 that falls to
0 along a cosine, random flips, batches of 8.

python -m benchmarks.plain_loop --config configs/phantom.yaml --net monai-unet --seconds 60 --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

from benchmarks.dice import region_dice
from template.data.dataset import Case
from template.data.liver import LiverCT
from template.data.phantom import Phantom
from template.data.transforms import Window

LEARNING_RATE, BATCH = 1e-3, 8
#: How many times in a training the weights are scored on the validation cases, off the clock.
LOOKS = 40
#: Axes that are flipped, each with probability 1/2.
FLIPS = {"none": (), "left-right": (-1,), "both": (-1, -2)}

Loss = Callable[[Tensor, Tensor], Tensor]


def smp_unet(classes: int) -> tuple[nn.Module, Loss]:
    """segmentation-models-pytorch's Unet as its examples have it, without downloaded weights."""
    import segmentation_models_pytorch as smp

    dice, cross_entropy = smp.losses.DiceLoss("multiclass", from_logits=True), nn.CrossEntropyLoss()
    net = smp.Unet("resnet34", encoder_weights=None, in_channels=1, classes=classes)
    return net, lambda logits, mask: dice(logits, mask) + cross_entropy(logits, mask)


def monai_unet(classes: int) -> tuple[nn.Module, Loss]:
    """MONAI's UNet with the numbers of its spleen tutorial, in 2D."""
    from monai.networks.nets.unet import UNet

    return UNet(2, 1, classes, (16, 32, 64, 128, 256), (2, 2, 2, 2), num_res_units=2, norm="batch"), _monai_loss()


def _monai_loss() -> Loss:
    from monai.losses.dice import DiceCELoss

    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    return lambda logits, mask: loss(logits, mask[:, None])


NETWORKS = {"smp-unet": smp_unet, "monai-unet": monai_unet}


def data_of(config: dict[str, Any]) -> LiverCT | Phantom:
    """The data set of a shipped configuration, as it lists and reads cases; nothing is transformed."""
    arguments = dict(config["data"]["init_args"])
    for name in ("preprocess", "augment", "num_workers", "seed"):
        arguments.pop(name, None)
    known: dict[str, type[LiverCT | Phantom]] = {"LiverCT": LiverCT, "Phantom": Phantom}
    data = known[config["data"]["class_path"]](**arguments)
    data.prepare_data()
    return data


def rate(share: float) -> float:
    """Learning rate once a share of the time is spent: from ``LEARNING_RATE`` to 0 along a cosine."""
    return LEARNING_RATE * (1 + math.cos(math.pi * min(share, 1.0))) / 2


class Budget:
    """Seconds to spend, on a clock that can be stopped.

    Args:
        seconds: How many.
        clock: Seconds that have passed since any moment; default: CPU time of this process.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.process_time) -> None:
        self.seconds = seconds
        self._clock = clock
        self._begun = clock()

    @property
    def spent(self) -> float:
        """Seconds that count so far."""
        return self._clock() - self._begun

    def off(self, work: Callable[[], None]) -> None:
        """Do something that does not count."""
        before = self._clock()
        work()
        self._begun += self._clock() - before


class Training:
    """One network in training.

    Args:
        net: Name of one of ``NETWORKS``.
        config: A shipped configuration: its data, window and precision are used.
        seed: Of weights, batches and flips.
        flips: Name of one of ``FLIPS``.
    """

    def __init__(self, net: str, config: dict[str, Any], seed: int, flips: str) -> None:
        torch.manual_seed(seed)
        self.data = data_of(config)
        self.window = Window(**config["data"]["init_args"]["preprocess"][0]["init_args"])
        learnt = [self.read(case) for case in self.data.cases("train")]
        self.images, self.masks = (torch.stack(part) for part in zip(*learnt, strict=True))
        self.held_out = [self.read(case) for case in self.data.cases("val")]
        self.axes = FLIPS[flips]
        self.autocast = str(config["trainer"].get("precision")) == "bf16-mixed"
        self.net, self.loss = NETWORKS[net](self.data.num_classes)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), LEARNING_RATE)
        self.order = torch.empty(0, dtype=torch.int64)
        self.best: tuple[float, dict[str, Tensor]] = (-1.0, {})

    def read(self, case: Case) -> tuple[Tensor, Tensor]:
        """Image [1, H, W] in the window, and labels int64 [H, W]."""
        image, mask = self.data.read(case)
        assert mask is not None
        return self.window.intensity(image, {}), mask.long()

    def logits(self, images: Tensor) -> Tensor:
        """Float32 [N, K, H, W]."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits: Tensor = self.net(images)
        return logits.float()

    def step(self, rate: float) -> None:
        """One optimizer step."""
        if len(self.order) < BATCH:
            self.order = torch.randperm(len(self.images))
        chosen, self.order = self.order[:BATCH], self.order[BATCH:]
        images, masks = self.images[chosen], self.masks[chosen]
        for axis in self.axes:
            flipped = torch.rand(BATCH) < 0.5
            images[flipped], masks[flipped] = images[flipped].flip(axis), masks[flipped].flip(axis)
        self.optimizer.param_groups[0]["lr"] = rate
        loss = self.loss(self.logits(images), masks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @torch.inference_mode()
    def predict(self, image: Tensor) -> Tensor:
        """Labels uint8 [H, W] of an image."""
        self.net.eval()
        labels = self.logits(image[None])[0].argmax(0).to(torch.uint8)
        self.net.train()
        return labels

    def look(self) -> None:
        """Keep the weights if their mean Dice on the validation cases is the best so far."""
        pairs = [(self.predict(image).numpy(), mask.numpy()) for image, mask in self.held_out]
        score = float(np.mean(list(region_dice(pairs, self.data.regions).values())))
        if score >= self.best[0]:
            self.best = (score, {name: value.clone() for name, value in self.net.state_dict().items()})

    def fit(self, budget: Budget) -> int:
        """Train until the budget is spent, and go back to the best weights.

        Returns:
            Optimizer steps.
        """
        self.net.train()
        steps = looks = 0
        while budget.spent < budget.seconds:
            self.step(rate(budget.spent / budget.seconds))
            steps += 1
            if budget.spent > (looks + 1) * budget.seconds / LOOKS:
                looks += 1
                budget.off(self.look)
        budget.off(self.look)
        self.net.load_state_dict(self.best[1])
        return steps


def main() -> None:
    """Train one network, and write its masks of the test cases and, in told.json, what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--net", choices=NETWORKS, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="CPU time of the training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--flips", choices=FLIPS, default="left-right")
    parser.add_argument("--out", type=Path, required=True, help="existing folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))
    training = Training(arguments.net, config, arguments.seed, arguments.flips)
    budget = Budget(arguments.seconds)
    steps = training.fit(budget)
    taken = {
        "seconds": budget.spent,
        "steps": steps,
        "parameters": sum(p.numel() for p in training.net.parameters()),
        "val": training.best[0],
    }
    for case in training.data.cases("test"):
        mask = training.predict(training.read(case)[0])
        Image.fromarray(mask.numpy()).save(arguments.out / f"{case.name}.png")
    (arguments.out / "told.json").write_text(json.dumps(taken), encoding="utf-8")


if __name__ == "__main__":
    main()
