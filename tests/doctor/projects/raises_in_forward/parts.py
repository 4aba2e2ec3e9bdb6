from torch import nn


class Broken(nn.Module):
    """Adds features of two sizes."""

    stride = 2

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(1, 8, 3, padding=1)
        self.other = nn.Conv2d(1, 8, 3, padding=1, stride=self.stride)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.head(self.one(x) + self.other(x))


class Healthy(Broken):
    stride = 1
