from torch import nn


class Broken(nn.Module):
    """Compares the logits with themselves."""

    def forward(self, logits, target):
        return (logits - logits.clamp(-100, 100)).abs().mean()
