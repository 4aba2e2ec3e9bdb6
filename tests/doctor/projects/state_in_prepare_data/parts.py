from template.data.phantom import Phantom


class Broken(Phantom):
    def prepare_data(self):
        self.mean = 20.0

    def read(self, case):
        image, mask = super().read(case)
        return image - self.mean, mask


class Healthy(Broken):
    def prepare_data(self):
        pass

    def setup(self, stage):
        self.mean = 20.0
        super().setup(stage)
