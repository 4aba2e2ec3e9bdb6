import torch
from torch import nn


class Broken(nn.Module):
    """Warms up by a factor in a buffer that no checkpoint holds."""

    persistent = False

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)
        self.register_buffer("warm", torch.tensor(0.5), persistent=self.persistent)

    def forward(self, x):
        if self.training:
            self.warm = (self.warm + 0.1).clamp(max=1.0)
        return self.warm * self.head(self.body(x).relu())


class Healthy(Broken):
    persistent = True
