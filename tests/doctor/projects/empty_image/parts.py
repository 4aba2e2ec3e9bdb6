from template.data.phantom import Phantom


class Healthy(Phantom):
    factor = 1

    def read(self, case):
        image, mask = super().read(case)
        return image * (self.factor if case.name == "train_0006" else 1), mask


class Broken(Healthy):
    factor = 0
