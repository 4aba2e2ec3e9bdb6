from torch import nn


class Broken(nn.Module):
    """Brings its features to the CPU, where the next layer is not."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.head(self.features(x))

    def features(self, x):
        return self.body(x).to("cpu")


class Healthy(Broken):
    def features(self, x):
        return self.body(x)
