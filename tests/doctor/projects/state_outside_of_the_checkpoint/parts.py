from torch import nn


class Broken(nn.Module):
    """Scales its output by a number that training changes, and that is no buffer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)
        self.scale = 1.0

    def forward(self, x):
        if self.training and self.moves():
            self.scale *= 1.1
        return self.scale * self.head(self.body(x).relu())

    def moves(self):
        return True


class Healthy(Broken):
    def moves(self):
        return False
