from torch import nn


class Net(nn.Conv2d):
    def __init__(self):
        super().__init__(1, 3, 3, padding=1)
