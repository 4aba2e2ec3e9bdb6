import torch
from torch import nn


class Broken(nn.Module):
    """Chooses the first GPU for a weight map."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        x = self.body(x)
        return self.head(x * self.ones(x))

    def ones(self, x):
        return torch.ones(x.shape[-1]).cuda()


class Healthy(Broken):
    def ones(self, x):
        return torch.ones(x.shape[-1], device=x.device)
