import sys

from torch import nn


class Broken(nn.Module):
    """Leaves the program when it does not like the images."""

    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(1, 3, 3, padding=1)

    def forward(self, x):
        if self.refuses(x):
            sys.exit("images must be larger than 64 pixels")
        return self.head(x)

    def refuses(self, x):
        return x.shape[-1] < 64


class Healthy(Broken):
    def refuses(self, x):
        return False
