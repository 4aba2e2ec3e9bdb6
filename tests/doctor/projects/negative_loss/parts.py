import torch.nn.functional as F
from torch import nn


class Broken(nn.Module):
    """Forgets the logarithm that nll_loss waits for."""

    def forward(self, logits, target):
        return F.nll_loss(self.probabilities(logits), target, ignore_index=255)

    def probabilities(self, logits):
        return logits.softmax(1)


class Healthy(Broken):
    def probabilities(self, logits):
        return logits.log_softmax(1)
