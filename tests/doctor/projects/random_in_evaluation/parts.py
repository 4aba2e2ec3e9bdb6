import torch.nn.functional as F
from torch import nn


class Broken(nn.Module):
    """Dropout that nothing switches off."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 8, 3, padding=1)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.head(self.dropped(self.body(x).relu()))

    def dropped(self, x):
        return F.dropout(x, 0.2)


class Healthy(Broken):
    def dropped(self, x):
        return F.dropout(x, 0.2, training=self.training)
