from template.data.phantom import Phantom


class Healthy(Phantom):
    def cases(self, split):
        return super().cases(split)


class Broken(Healthy):
    def cases(self, split):
        found = super().cases(split)
        return found + found[3:4]
