import numpy as np
from torch import nn


class RandomNoise(nn.Module):
    def draw(self):
        return np.random.default_rng(0).normal()

    def forward(self, sample):
        sample["image"] = sample["image"] + float(self.draw())
        return sample


class Healthy(RandomNoise):
    def draw(self):
        return np.random.normal()
