from tests.doctor.pictures import draw, write_masks


def make(folder, broken):
    write_masks(folder, {name: (labels > 0) * labels.dtype.type(255) for name, labels in draw(folder).items()})
