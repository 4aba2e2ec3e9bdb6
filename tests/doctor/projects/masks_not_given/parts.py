from template.data.phantom import Phantom


class Healthy(Phantom):
    def labelled(self, number):
        return True

    def read(self, case):
        image, mask = super().read(case)
        return image, mask if self.labelled(case.source[1]) else None


class Broken(Healthy):
    def labelled(self, number):
        return number % 4 != 3
