import torch
from torch import nn


class Broken(nn.Module):
    """Counts its steps in a buffer that the backward pass needs as it was."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        x = self.body(x) * self.used()
        self.scale.mul_(1.0)
        return self.head(x.relu())

    def used(self):
        return self.scale


class Healthy(Broken):
    def used(self):
        return self.scale.clone()
