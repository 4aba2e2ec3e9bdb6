import numpy as np
from PIL import Image

from tests.doctor.pictures import draw

COLORS = np.array([[0, 0, 0], [255, 0, 0], [0, 0, 255]], np.uint8)


def make(folder, broken):
    (folder / "masks").mkdir()
    for name, labels in draw(folder).items():
        Image.fromarray(COLORS[labels]).save(folder / "masks" / name)
