"""A U-Net trained on one GPU, as people write it. Without a GPU it runs on the CPU.

    python docs/examples/single_gpu.py --out runs/single

many_gpus_by_hand.py is the same script after the edits for several GPUs; docs/from-one-gpu-to-many.md explains them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter


class Discs(Dataset[tuple[Tensor, Tensor]]):
    """Noisy grey pictures with one disc, in place of CT slices and their masks."""

    def __init__(self, first: int, count: int, size: int = 32) -> None:
        self.first, self.count, self.size = first, count, size

    def __len__(self) -> int:
        """Number of pictures."""
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Image, float32 [1, size, size], and mask, int64 [size, size]."""
        random = torch.Generator().manual_seed(self.first + index)
        radius, *centre = (torch.rand(3, generator=random) * self.size / 4).tolist()
        rows, columns = torch.meshgrid(torch.arange(self.size), torch.arange(self.size), indexing="ij")
        distance = torch.hypot(rows - self.size / 4 - centre[0], columns - self.size / 4 - centre[1])
        mask = (distance < radius + 3).long()
        return mask[None] + torch.randn(1, self.size, self.size, generator=random), mask


def block(channels: int, width: int) -> nn.Sequential:
    """Two convolutions."""
    layers: list[nn.Module] = []
    for before in (channels, width):
        layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net of two scales."""

    def __init__(self, channels: int = 1, classes: int = 2, width: int = 8) -> None:
        super().__init__()
        self.down, self.bottom = block(channels, width), block(width, 2 * width)
        self.enlarge = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up, self.head = block(2 * width, width), nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [N, classes, H, W] of images [N, channels, H, W]."""
        fine = self.down(image)
        coarse = self.bottom(nn.functional.max_pool2d(fine, 2))
        return self.head(self.up(torch.cat([fine, self.enlarge(coarse)], 1)))


def score(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]], device: torch.device) -> float:
    """Dice of the discs."""
    sums = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad():
        for image, mask in loader:
            found, truth = model(image.to(device)).argmax(1) == 1, mask.to(device) == 1
            sums += torch.stack([2 * (found & truth).sum(), found.sum() + truth.sum()])
    model.train()
    return float(sums[0] / sums[1])


def main(args: argparse.Namespace) -> None:
    """Train, score and save."""
    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    args.out.mkdir(parents=True)
    writer = SummaryWriter(args.out)

    train, val = Discs(0, args.cases), Discs(10_000, 9)
    train_loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val, args.batch_size)

    model = UNet(channels=1, classes=2).to(device)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(args.epochs):
        losses = []
        for image, mask in train_loader:
            loss = criterion(model(image.to(device)), mask.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        dice = score(model, val_loader, device)
        writer.add_scalar("val/dice", dice, epoch)
        print(f"epoch {epoch + 1}  loss {sum(losses) / len(losses):.4f}  val Dice {dice:.4f}")
        torch.save(model.state_dict(), args.out / "unet.pt")
    writer.close()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="new folder for log and checkpoint")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cases", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
