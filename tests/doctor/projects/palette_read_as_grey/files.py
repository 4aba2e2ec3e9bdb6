from PIL import Image

from tests.doctor.pictures import draw


def make(folder, broken):
    (folder / "masks").mkdir()
    for name, labels in draw(folder).items():
        mask = Image.fromarray(labels)
        mask.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
        mask.save(folder / "masks" / name)
