from PIL import Image

from tests.doctor.pictures import draw, write_masks


def make(folder, broken):
    write_masks(folder, draw(folder, channels=3))
    grey = folder / "images" / "case_03.png"
    Image.open(grey).convert("L").save(grey)
