from PIL import Image

from tests.doctor.pictures import draw


def make(folder, broken):
    (folder / "masks").mkdir()
    for name, labels in draw(folder).items():
        file = folder / "masks" / name
        Image.fromarray(labels * 100).save(file.with_suffix(".jpg") if broken else file)
