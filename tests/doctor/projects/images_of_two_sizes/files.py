from PIL import Image

from tests.doctor.pictures import draw, write_masks


def make(folder, broken):
    drawn = draw(folder)
    write_masks(folder, drawn)
    for kind, how in (("images", Image.BILINEAR), ("masks", Image.NEAREST)):
        file = folder / kind / "case_07.png"
        Image.open(file).resize((48, 48), how).save(file)
