from tests.doctor.pictures import draw, write_masks


def make(folder, broken):
    write_masks(folder, draw(folder))
    if broken:
        (folder / "masks" / "case_08.png").rename(folder / "masks" / "Case_08.png")
