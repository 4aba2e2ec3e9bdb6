import torch
from torch import nn


class Broken(nn.Module):
    """Keeps the mean of its images in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.keep(torch.full((1, 1, 1), 0.3))
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)

    def keep(self, mean):
        self.mean = mean

    def forward(self, x):
        return self.head(self.body(x - self.mean).relu())


class Healthy(Broken):
    def keep(self, mean):
        self.register_buffer("mean", mean)
