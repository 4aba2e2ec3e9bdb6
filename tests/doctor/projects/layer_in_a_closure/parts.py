from torch import nn


class Broken(nn.Module):
    """Uses a layer that only a function knows."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = self.made(nn.Conv2d(8, 3, 1))

    def made(self, layer):
        return lambda x: layer(x.relu())

    def forward(self, x):
        return self.head(self.body(x))


class Healthy(Broken):
    def made(self, layer):
        return nn.Sequential(nn.ReLU(), layer)
