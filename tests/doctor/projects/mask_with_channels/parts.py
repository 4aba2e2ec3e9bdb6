import torch

from template.data.phantom import Phantom


class Healthy(Phantom):
    def coded(self, mask):
        return mask

    def read(self, case):
        image, mask = super().read(case)
        return image, self.coded(mask)


class Broken(Healthy):
    def coded(self, mask):
        return torch.stack([mask == label for label in range(3)]).to(torch.uint8)
