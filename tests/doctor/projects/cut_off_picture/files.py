from tests.doctor.pictures import draw, write_masks


def make(folder, broken):
    write_masks(folder, draw(folder))
    if broken:
        picture = folder / "images" / "case_04.png"
        picture.write_bytes(picture.read_bytes()[: picture.stat().st_size // 2])
