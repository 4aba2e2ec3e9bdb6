from tests.doctor.pictures import draw, write_masks


def make(folder, broken):
    write_masks(folder, draw(folder))
    if broken:
        (folder / "masks").rename(folder / "Masks")
