import torch

from template.data.phantom import Phantom


class Broken(Phantom):
    dtype = torch.int16

    def read(self, case):
        image, mask = super().read(case)
        return image.to(self.dtype), mask


class Healthy(Broken):
    dtype = torch.float32
