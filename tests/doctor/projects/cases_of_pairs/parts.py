from template.data.module import Case
from template.data.phantom import Phantom


class Broken(Phantom):
    kind = tuple

    def cases(self, split):
        return [self.kind(pair) for pair in super().cases(split)]


class Healthy(Broken):
    kind = Case._make
