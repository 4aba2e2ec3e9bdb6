"""single_gpu.py after the thirteen edits that people make by hand for several GPUs; without a GPU it runs on the CPU.

    torchrun --nproc-per-node=2 docs/examples/many_gpus_by_hand.py --out runs/by_hand

docs/from-one-gpu-to-many.md explains each edit, what goes wrong without it, and what becomes of it in this program.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
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
    dist.all_reduce(sums)  # edit 2: each process has scored its own share
    return float(sums[0] / sums[1])


def main(args: argparse.Namespace) -> None:
    """Train, score and save."""
    torch.manual_seed(0)
    # edit 10: meet the other processes
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # edit 1: one GPU for each process of this machine
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # edit 9: a folder for each process
    folder = args.out / f"rank_{rank}"
    folder.mkdir(parents=True)
    writer = SummaryWriter(folder)

    train, val = Discs(0, args.cases), Discs(10_000, 9)
    # edit 2: a share of the samples for each process, and a share of the batch
    train_sampler = DistributedSampler(train, drop_last=True)
    val_sampler = DistributedSampler(val, shuffle=False)
    batch_size = args.batch_size // world_size
    # edit 3: the sampler shuffles, so the loader must not
    train_loader = DataLoader(train, batch_size, sampler=train_sampler, drop_last=True)
    val_loader = DataLoader(val, batch_size, sampler=val_sampler)

    model = UNet(channels=1, classes=2)
    # edit 5: statistics over all processes; torch has it for GPUs alone
    if device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    # edit 6: to the device first, then into the wrapper
    model = model.to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if device.type == "cuda" else None)
    # edit 12: the loss holds tensors too, on this process's device
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)  # edit 4: another order in each epoch
        losses = []
        for image, mask in train_loader:
            loss = criterion(model(image.to(device)), mask.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        dice = score(model, val_loader, device)
        writer.add_scalar("val/dice", dice, epoch)
        # edit 8: one process writes
        if rank == 0:
            print(f"epoch {epoch + 1}  loss {sum(losses) / len(losses):.4f}  val Dice {dice:.4f}")
            # edit 7: the network inside the wrapper
            torch.save(model.module.state_dict(), args.out / "unet.pt")
    writer.close()
    dist.destroy_process_group()  # edit 10: and leave them


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="new folder for log and checkpoint")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cases", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    # edit 13: torch.distributed.launch adds it, in one of two spellings
    parser.add_argument("--local-rank", "--local_rank", type=int)
    return parser.parse_args()


def spawned(rank: int, world_size: int, args: argparse.Namespace) -> None:
    """Run one of the processes that this script starts itself."""
    # edit 11: mp.spawn gives each process its number and nothing else
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="12355")
    main(args)


if __name__ == "__main__":
    # edit 13: torchrun has started this process, or it was started by hand
    if "RANK" in os.environ:
        main(arguments())
    else:
        processes = torch.cuda.device_count() or 2
        mp.spawn(spawned, args=(processes, arguments()), nprocs=processes)  # edit 11
