"""What the header of a NIfTI file says of its place beside the affine matrix that is used: its unit, and its qform."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_METRE, _MILLIMETRE, _MICROMETRE = 1, 2, 3
#: Of the quaternion form; the sizes of the voxels are a part of it (nifti1.h, method 2).
_QFORM = ("quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z")


class Forms(NamedTuple):
    """Parts of a header of NIfTI-1 or NIfTI-2.

    Attributes:
        unit: Code of the spatial unit: 1 metre, 2 millimetre, 3 micrometre; others are unknown.
        sform_code: Which space the affine matrix leads to; 0 where the file has it as its qform alone.
        qform_code: The same of the qform; 0: there is none.
        qform: Quaternion b, c, d and offset x, y, z.
        pixdim: Sign of the third axis, and size of the voxels along the file's axes, in the file's unit.
    """

    unit: int = _MILLIMETRE
    sform_code: int = 0
    qform_code: int = 0
    qform: tuple[float, ...] = ()
    pixdim: tuple[float, ...] = ()

    @property
    def millimetres(self) -> float:
        """Of one unit; an unknown one counts as a millimetre."""
        return {_METRE: 1000.0, _MICROMETRE: 0.001}.get(self.unit, 1.0)

    @property
    def known(self) -> bool:
        """Whether the file tells its unit."""
        return _METRE <= self.unit <= _MICROMETRE

    def write(self, image: Any, affine: NDArray[np.float64]) -> None:
        """Put them into the header of an image of nibabel's, with the affine matrix as its sform."""
        # "Scanner" coordinates, as most programs expect; the quaternion form cannot hold a sheared affine.
        image.set_sform(affine, code=self.sform_code or 1)
        header = image.header
        header["xyzt_units"] = self.unit if self.known else _MILLIMETRE
        if self.qform_code > 0:
            header["qform_code"] = self.qform_code
            for name, value in zip(_QFORM, self.qform, strict=True):
                header[name] = value
            header["pixdim"][: len(self.pixdim)] = self.pixdim


def forms_of(header: Any) -> Forms:
    """Those of a header of nibabel's; of another format than NIfTI, millimetres and no qform."""
    try:
        pixdim = tuple(float(size) for size in header["pixdim"][:4])
        return Forms(
            int(header["xyzt_units"]) & 7,  # the other bits are the unit of time
            int(header["sform_code"]),
            int(header["qform_code"]) if min(pixdim[1:]) > 0 else 0,  # else it leads nowhere
            tuple(float(header[name]) for name in _QFORM),
            pixdim,
        )
    except (KeyError, ValueError, IndexError, TypeError):
        return Forms()
