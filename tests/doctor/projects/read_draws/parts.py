import torch

from template.data.phantom import Phantom


class Healthy(Phantom):
    def added(self, image):
        return 5 * torch.randn(image.shape, generator=torch.Generator().manual_seed(0))

    def read(self, case):
        image, mask = super().read(case)
        return image + self.added(image), mask


class Broken(Healthy):
    def added(self, image):
        return 5 * torch.randn(image.shape)
