import torch

from template.data.phantom import Phantom


class Healthy(Phantom):
    def scaled(self, image, number):
        return image - image.mean()

    def read(self, case):
        image, mask = super().read(case)
        return self.scaled(image, case.source[1]), mask


class Broken(Healthy):
    def scaled(self, image, number):
        spread = image.std() if number != 3 else torch.tensor(0.0)
        return (image - image.max()) / spread
