from tests.doctor.pictures import draw, write_masks


def make(folder, broken):
    drawn = draw(folder)
    if broken:
        drawn["case_05.png"] = drawn["case_05.png"][1:]
    write_masks(folder, drawn)
