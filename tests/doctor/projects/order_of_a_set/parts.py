import os
from hashlib import md5

from template.data.phantom import Phantom


class Broken(Phantom):
    def cases(self, split):
        # As set() does it in processes of their own; those of a test are forked, and have one order of sets.
        return sorted(super().cases(split), key=lambda case: md5(f"{os.environ['RANK']} {case.name}".encode()).digest())


class Healthy(Phantom):
    def cases(self, split):
        return sorted(set(super().cases(split)))
