import torch
from torch import nn


class Noise(nn.Module):
    """Adds noise while training."""

    def forward(self, x):
        return x + 0.1 * torch.rand_like(x) if self.training else x


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.noise = self.make_noise()
        self.head = nn.Conv2d(8, 3, 1)

    def make_noise(self):
        return Noise()

    def forward(self, x):
        return self.head(self.noise(self.body(x)).relu())


class Healthy(Broken):
    def make_noise(self):
        return nn.Dropout(0.1)
