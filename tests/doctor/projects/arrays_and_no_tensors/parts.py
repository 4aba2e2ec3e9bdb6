import torch

from template.data.phantom import Phantom


class Broken(Phantom):
    def given(self, array):
        return array

    def read(self, case):
        image, mask = super().read(case)
        return self.given(image.numpy()), self.given(mask.numpy())


class Healthy(Broken):
    def given(self, array):
        return torch.from_numpy(array)
