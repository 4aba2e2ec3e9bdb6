from torch import nn


class Broken(nn.Module):
    """Keeps a layer that is left over."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.left_over = nn.Conv2d(8, 8, 1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Healthy(Broken):
    def __init__(self):
        super().__init__()
        self.left_over.requires_grad_(False)
