from torch import nn


class Broken(nn.Module):
    """Holds its blocks in a plain list."""

    container = list

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = self.container([nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)])
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x)


class Healthy(Broken):
    container = nn.ModuleList
