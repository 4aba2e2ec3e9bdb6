import torch.distributed as dist
from torch import nn

from template.distributed.collectives import global_sum


class Broken(nn.Module):
    """Dice over all processes, whose sums are exchanged by a collective that has no backward pass."""

    def forward(self, logits, target):
        truth = (target == 1).float()
        found = logits.softmax(1)[:, 1]
        both, all_found, all_true = self.total(found * truth), self.total(found), self.total(truth)
        return 1 - (2 * both + 1) / (all_found + all_true + 1)

    def total(self, values):
        value = values.sum()
        if dist.is_initialized():
            everywhere = value.detach().clone()
            dist.all_reduce(everywhere)
            value = value + (everywhere - value.detach())
        return value


class Healthy(Broken):
    def total(self, values):
        return global_sum(values.sum())
