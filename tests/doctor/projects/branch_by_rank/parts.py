import os

from torch import nn


class Broken(nn.Module):
    """Takes a branch on odd ranks only."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.extra = nn.Conv2d(8, 8, 1)
        self.head = nn.Conv2d(8, 3, 1)

    def branch(self):
        return int(os.environ["RANK"]) % 2 == 1

    def forward(self, x):
        x = self.body(x).relu()
        if self.branch():
            x = x + self.extra(x)
        return self.head(x)


class Healthy(Broken):
    def branch(self):
        return True
