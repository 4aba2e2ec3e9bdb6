import torch
from torch import nn


class Broken(nn.Module):
    """Holds its scales in a plain dict."""

    container = dict

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.scales = self.container({"main": nn.Parameter(torch.ones(8, 1, 1))})
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.head((self.body(x) * self.scales["main"]).relu())


class Healthy(Broken):
    container = nn.ParameterDict
