import torch
from torch import nn


class Broken(nn.Module):
    """Pads with zeros that are made on the CPU."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(2, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        x = torch.cat([x, self.zeros(x)], dim=1)
        return self.head(self.body(x).relu())

    def zeros(self, x):
        return torch.zeros(x.shape)


class Healthy(Broken):
    def zeros(self, x):
        return torch.zeros_like(x)
