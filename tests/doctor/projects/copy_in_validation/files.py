import shutil

from tests.doctor.pictures import draw, write_masks


def make(folder, broken):
    write_masks(folder, draw(folder))
    if broken:
        for kind in ("images", "masks"):
            shutil.copy(folder / kind / "case_09.png", folder / kind / "case_06.png")
