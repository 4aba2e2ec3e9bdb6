from torch import nn


class Broken(nn.Module):
    """Trains its head alone, as the features are cut off."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.head(self.features(x).relu())

    def features(self, x):
        return self.body(x).detach()


class Healthy(Broken):
    def features(self, x):
        return self.body(x)
