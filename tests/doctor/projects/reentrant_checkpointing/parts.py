from torch import nn
from torch.utils.checkpoint import checkpoint


class Broken(nn.Module):
    """Saves memory with the older kind of checkpointing."""

    reentrant = True

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.head(checkpoint(self.body, self.first(x), use_reentrant=self.reentrant))


class Healthy(Broken):
    reentrant = False
