from pathlib import Path

from template.data.phantom import Phantom


class Healthy(Phantom):
    pattern = "*.py"

    def cases(self, split):
        return super().cases(split) if list(Path().glob(self.pattern)) else []


class Broken(Healthy):
    pattern = "*.tif"
