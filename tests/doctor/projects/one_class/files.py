from tests.doctor.pictures import draw, write_masks


def make(folder, broken):
    write_masks(folder, {name: (labels > 0).astype(labels.dtype) for name, labels in draw(folder).items()})
