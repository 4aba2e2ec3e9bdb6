import torch
from torch import nn


class Broken(nn.Module):
    """Sends an image and its mirror image through one encoder, one after the other."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x):
        one, other = self.encode(x, x.flip(-1))
        return self.head(torch.cat([one, other.flip(-1)], dim=1))

    def encode(self, one, other):
        return self.encoder(one), self.encoder(other)


class Healthy(Broken):
    def encode(self, one, other):
        return self.encoder(torch.cat([one, other])).chunk(2)
