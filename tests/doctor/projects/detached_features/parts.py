from torch import nn


class Broken(nn.Module):
    """Cuts its output off the graph."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.cut(self.head(self.body(x).relu()))

    def cut(self, x):
        return x.detach().requires_grad_()


class Healthy(Broken):
    def cut(self, x):
        return x
