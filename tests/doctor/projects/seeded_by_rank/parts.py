import os

import torch
from torch import nn


class Healthy(nn.Module):
    def seed(self):
        return torch.initial_seed()

    def forward(self, sample):
        generator = torch.Generator().manual_seed(self.seed())
        sample["image"] = sample["image"] + torch.randn(1, generator=generator)
        return sample


class Broken(Healthy):
    def seed(self):
        return torch.initial_seed() + int(os.environ["RANK"])
