from torch import nn


class Broken(nn.Module):
    """Makes its head anew on the first images, when the optimizer has the old one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 2, 1)
        self.fit_head()

    def fit_head(self):
        pass

    def forward(self, x):
        if self.head.out_channels != 3:
            self.head = nn.Conv2d(8, 3, 1)
        return self.head(self.body(x).relu())


class Healthy(Broken):
    def fit_head(self):
        self.head = nn.Conv2d(8, 3, 1)
