import numpy as np

from template.data.phantom import Phantom


class Broken(Phantom):
    def shuffled(self, cases):
        return np.random.permutation(len(cases))

    def cases(self, split):
        if split == "test":
            return super().cases("test")
        every = super().cases("train")
        order = self.shuffled(every)
        return [every[i] for i in (order[:8] if split == "train" else order[8:])]


class Healthy(Broken):
    def shuffled(self, cases):
        return np.random.default_rng(0).permutation(len(cases))
