from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from template.data.dicom import Dicom
from template.data.dicom_files import read_series, read_voxels
from template.distributed.faults import NamedError

from . import volume_sets
from .refused import cut_off, refused
from .volume_runs import check_on_image, trained_and_predicted
from .volume_sets import body, dicom_series

pydicom = pytest.importorskip("pydicom")
pytestmark = pytest.mark.filterwarnings("default")  # of a run of a second
CLASSES = ["background", "liver", "tumour"]


def data(root: Path, **arguments: Any) -> Dicom:
    given = {"images": str(root / "dicom"), "masks": str(root / "masks"), "classes": CLASSES, **arguments}
    return Dicom(cache_dir=str(root / "cache"), **{"val_fraction": 0.0, "test_fraction": 0.0, **given})


def edit(file: Path, **tags: Any) -> None:
    """Change tags of a file; None removes one."""
    header = pydicom.dcmread(file)
    for name, value in tags.items():
        if value is None:
            del header[name]
        else:
            setattr(header, name, value)
    header.save_as(file)


def at(folder: Path, place: int) -> Path:
    """File of a slice, counted from the feet: the n-th is written as 3 n modulo 10."""
    return folder / f"{(place * 3) % 10:03d}.dcm"


def test_the_shipped_configuration_trains_scores_and_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    volume_sets.dicom(Path("data"))
    dicom_series(Path("new/王 五/s 1"), body(7)[0])
    dicom_series(Path("new/王 五/scout"), body(8)[0][..., :1], ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    (mask,) = trained_and_predicted("dicom", "new", "--data.classes=[background,liver,tumour]")
    assert mask.name == "王 五_s 1.nii.gz"
    image, labels = volume_sets.oriented(body(7)[0], "LPS")  # the order of DICOM's own axes
    reference = nibabel.Nifti1Image(image, read_series(Path("new/王 五/s 1")).geometry.affine)
    nibabel.save(reference, "reference.nii")
    assert labels.shape == (4, 4)
    check_on_image(mask, Path("reference.nii"), {0, 1, 2})


def test_series_whose_files_look_alike_are_kept_apart(tmp_path: Path) -> None:
    """Before and after contrast: one grid, the same names, sizes and times of the slices."""
    for number, name in enumerate(("before", "after")):
        dicom_series(tmp_path / name, body(number)[0])
        for file in (tmp_path / name).iterdir():
            os.utime(file, (5, 5))
    found = data(tmp_path)
    for number, case in enumerate(reversed(found.predict_cases(tmp_path))):
        assert np.array_equal(found.read(case)[0][0], body(number)[0][::-1, ::-1].T)


def test_a_series_is_put_in_order_and_in_hounsfield_units(tmp_path: Path) -> None:
    """Instance numbers and file names are in no order; a NIfTI mask has its axes in another order."""
    found = data(volume_sets.dicom(tmp_path, 3))
    cases = found.cases("train")
    for number in range(3):
        voxels, labels = body(number)
        for place in (0, 4, 9):
            image, mask = found.read(cases[10 * number + place])
            assert np.array_equal(image[0], voxels[::-1, ::-1, place].T)
            assert mask is not None
            assert np.array_equal(mask, labels[::-1, ::-1, place].T)
    assert found.spacing(cases[0]) == pytest.approx((2.5, 1.0, 1.0))
    copied = pickle.loads(pickle.dumps(found))  # as a loader worker gets it
    assert np.array_equal(copied.read(cases[0])[0], found.read(cases[0])[0])
    assert [volume.patient for volume in found.volumes()] == ["P0", "P1", "P2"]
    assert data(tmp_path, patient=r"(patient) \d").volumes()[2].patient == "patient"


@pytest.mark.parametrize("flip", [1, -1])
def test_an_oblique_series_lies_where_its_slices_say(flip: int, tmp_path: Path) -> None:
    """DICOM's axes grow to the left, the back and the head; NIfTI's to the right, the front and the head."""
    a, b = np.deg2rad([15.0, -20.0])
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]]) @ np.array(
        [[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]]
    )
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag([0.5, 0.75, 3.0 * flip])
    affine[:3, 3] = (5.0, -6.0, 7.0)
    voxels = body(0)[0]
    series = read_series(dicom_series(tmp_path / "s", voxels, affine=affine))
    expected = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    stored = voxels[::-1, ::-1]  # [column, row, slice]
    if flip < 0:  # they are put in order along the normal, whichever way they were taken
        expected[:, 3] += 9 * expected[:, 2]
        expected[:, 2] *= -1
        stored = stored[..., ::-1]
    assert np.allclose(series.geometry.affine, expected, atol=1e-6)
    assert np.array_equal(read_voxels(series), stored)
    assert series.geometry.spacing == pytest.approx((3.0, 0.75, 0.5))


def test_a_tilted_gantry_is_kept(tmp_path: Path) -> None:
    affine = np.array([[1, 0, 0, 0.0], [0, 1, 0.5, 0], [0, 0, 2.0, 0], [0, 0, 0, 1]])
    series = read_series(dicom_series(tmp_path / "s", body(0)[0], affine=affine))
    assert np.allclose(series.geometry.affine[:3, 2], (0.0, -0.5, 2.0))


def test_slopes_of_their_own_and_other_orders_of_bytes(tmp_path: Path) -> None:
    from pydicom.uid import ExplicitVRBigEndian

    folder = dicom_series(tmp_path / "s", body(0)[0], ending="")
    for number, file in enumerate(sorted(folder.iterdir())):
        edit(file, RescaleSlope=2.0, RescaleIntercept=float(number))
    header = pydicom.dcmread(folder / "003")
    header.PixelData = np.frombuffer(header.PixelData, "<u2").astype(">u2").tobytes()
    header.file_meta.TransferSyntaxUID = ExplicitVRBigEndian
    pydicom.dcmwrite(folder / "003", header, little_endian=False, implicit_vr=False)
    voxels = read_voxels(read_series(folder))
    plain = body(0)[0][::-1, ::-1] + 1024
    for place in range(10):
        assert np.array_equal(voxels[..., place], 2.0 * plain[..., place] + (place * 3) % 10)


def test_the_series_that_pydicom_ships_lies_where_nibabel_says() -> None:
    wrappers = pytest.importorskip("nibabel.nicom.dicomwrappers")
    folder = Path(pydicom.__file__).parent / "data" / "test_files" / "dicomdirtests" / "98892001" / "CT5N"
    if not folder.is_dir():
        pytest.skip("this pydicom ships no such series")
    series = read_series(folder)
    voxels = read_voxels(series)
    assert voxels.shape == (16, 16, 5)
    for number, file in enumerate(series.files):
        peer = wrappers.wrapper_from_file(str(file))
        assert np.array_equal(voxels[..., number].T, peer.get_data())
        for row, column in ((0, 0), (3, 11), (15, 2)):
            left_back_head = (peer.affine @ [row, column, 0, 1])[:3]
            ours = (series.geometry.affine @ [column, row, number, 1])[:3]
            assert np.allclose(ours, left_back_head * [-1, -1, 1], atol=1e-3)


@pytest.mark.parametrize("form", ["RLE", "jpeg_ls_lossless", "jp2klossless", "bigendian", "implicit", "expb"])
def test_what_is_stored_in_another_form_is_the_same(form: str, tmp_path: Path) -> None:
    """The same slice as pydicom ships it, compressed or in another order of bytes."""
    shipped = Path(pydicom.__file__).parent / "data" / "test_files"
    found = []
    for name in ("MR_small.dcm", f"MR_small_{form}.dcm"):
        if not (shipped / name).is_file():
            pytest.skip("this pydicom ships no such file")
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes((shipped / name).read_bytes())
        try:
            found.append(read_voxels(read_series(folder)))
        except NamedError as error:
            if "no decoder" in error.what:
                pytest.skip(error.what)
            raise
    assert np.array_equal(*found)
    assert found[0].shape == (64, 64, 1)


def test_one_slice_takes_its_thickness_from_the_file(tmp_path: Path) -> None:
    folder = dicom_series(tmp_path / "s", body(0)[0][..., :1], SpacingBetweenSlices=4.0)
    assert read_series(folder).geometry.spacing == (4.0, 1.0, 1.0)
    edit(folder / "000.dcm", SpacingBetweenSlices=None)
    assert read_series(folder).geometry.spacing == (2.5, 1.0, 1.0)


def test_localizers_and_other_objects_are_passed_over(tmp_path: Path) -> None:
    folder = dicom_series(tmp_path / "s", body(0)[0])
    scout = dicom_series(tmp_path / "scout", body(1)[0][..., :1], ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    plan = dicom_series(tmp_path / "plan", body(1)[0][..., :1], Modality="RTSTRUCT")
    (scout / "000.dcm").rename(folder / "scout.dcm")
    (plan / "000.dcm").rename(folder / "plan.dcm")
    (folder / "DICOMDIR").write_bytes(b"index")
    (folder / "notes.txt").write_text("notes")
    (folder / "._000.dcm").write_bytes(b"\x00\x05\x16\x07")
    assert len(read_series(folder).files) == 10
    (scout / "000.dcm").write_bytes((folder / "scout.dcm").read_bytes())
    refused("data-missing", lambda: data(tmp_path).predict_cases(scout), "scout", "localizers")


def test_a_segmentation_object_is_read_onto_its_series(tmp_path: Path) -> None:
    highdicom = pytest.importorskip("highdicom")
    from pydicom.sr.codedict import codes

    folder = dicom_series(tmp_path / "dicom" / "anna" / "ct", body(0)[0], patient="P")
    series = read_series(folder)
    labels = body(0)[1][::-1, ::-1]  # [column, row, slice]
    sources = [pydicom.dcmread(file) for file in series.files]
    segments = [
        highdicom.seg.SegmentDescription(
            segment_number=number, segment_label=name, segmented_property_category=codes.SCT.Organ,
            segmented_property_type=codes.SCT.Liver,
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.MANUAL,
        )
        for number, name in ((1, "liver"), (2, "tumour"))
    ]  # fmt: skip
    seg = highdicom.seg.Segmentation(
        sources, labels.transpose(2, 1, 0), "BINARY", segments, "1.2.9", 9, "1.2.9.1", 1, "maker", "model", "1", "7",
    )  # fmt: skip
    (tmp_path / "masks" / "anna" / "ct").mkdir(parents=True)
    file = tmp_path / "masks" / "anna" / "ct" / "1-1.dcm"
    seg.save_as(file)
    found = data(tmp_path)
    assert seg.NumberOfFrames < 2 * 10  # slices of nothing are left out
    for place, case in enumerate(found.cases("train")):
        _, mask = found.read(case)
        assert mask is not None
        assert np.array_equal(mask, labels[..., place].T), place
    # Moved by half a voxel, it lies on no voxels of the series.
    for frame in seg.PerFrameFunctionalGroupsSequence:
        position = frame.PlanePositionSequence[0]
        position.ImagePositionPatient = [-6.5, *position.ImagePositionPatient[1:]]
    seg.save_as(file)
    again = data(tmp_path)
    refused("data-geometry", lambda: again.read(again.cases("train")[5]), "1-1.dcm", "another grid")
    cut_off(file)
    refused("data-unreadable", lambda: data(tmp_path).read(again.cases("train")[6]), "1-1.dcm")
    dicom_series(tmp_path / "other", body(0)[0][..., :1])
    (tmp_path / "other" / "000.dcm").rename(file)
    refused("data-unreadable", lambda: data(tmp_path).read(again.cases("train")[7]), "no DICOM SEG")


def _second_series(folder: Path) -> None:
    dicom_series(folder, body(0)[0][..., :2], ending="x.dcm", series="1.2.5", SeriesDescription="Lung 1mm")


def _sizes(folder: Path) -> None:
    edit(at(folder, 4), Rows=20, PixelData=b"\0" * (2 * 20 * 28))


def _compressed(folder: Path) -> None:
    from pydicom.uid import HTJ2KLossless

    header = pydicom.dcmread(at(folder, 4))
    header.file_meta.TransferSyntaxUID = HTJ2KLossless
    header.PixelData = pydicom.encaps.encapsulate([b"1234"])
    header["PixelData"].is_undefined_length = True
    header.save_as(at(folder, 4))


FAULTS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "gap": (lambda f: at(f, 4).unlink(), "data-geometry", ("009.dcm", "005.dcm", "5 mm apart", "2.5 mm")),
    "doubled": (
        lambda f: (f / "copy.dcm").write_bytes(at(f, 4).read_bytes()), "data-geometry",
        ("002.dcm", "copy.dcm", "same place"),
    ),
    "moved": (lambda f: edit(at(f, 4), ImagePositionPatient=[30, -12, 110]), "data-geometry", ("002.dcm", "line")),
    "two series": (_second_series, "data-unpaired", ("2 series", "'Lung 1mm' (2 files)")),
    "direction": (
        lambda f: edit(at(f, 4), ImageOrientationPatient=[0, 1, 0, 1, 0, 0]), "data-geometry", ("002.dcm", "direction"),
    ),
    "no position": (lambda f: edit(at(f, 4), ImagePositionPatient=None), "data-unreadable", ("no ImagePosition",)),
    "frames": (
        lambda f: edit(at(f, 4), ImagePositionPatient=None, ImageOrientationPatient=None, NumberOfFrames=9),
        "data-unreadable", ("one file of 9 slices",),
    ),
    "no orientation": (
        lambda f: edit(at(f, 4), ImageOrientationPatient=[1, 0, 0, 1, 0, 0]), "data-unreadable", ("no right angle",),
    ),
    "NaN": (lambda f: edit(at(f, 4), ImagePositionPatient=["nan", "0", "0"]), "data-unreadable", ("002.dcm",)),
    "colour": (lambda f: edit(at(f, 4), SamplesPerPixel=3), "data-unreadable", ("002.dcm", "colour")),
    "size": (_sizes, "data-size-mismatch", ("Rows",)),
    "spacing": (lambda f: edit(at(f, 4), PixelSpacing=[2, 2]), "data-size-mismatch", ("PixelSpacing",)),
    "compressed": (_compressed, "data-unreadable", ("002.dcm", "High-Throughput JPEG 2000", "no decoder")),
    "truncated": (lambda f: cut_off(at(f, 4)), "data-unreadable", ("002.dcm",)),
    "beginning": (lambda f: cut_off(at(f, 4), 0.05), "data-unreadable", ("002.dcm",)),
    "empty": (lambda f: at(f, 4).write_bytes(b""), "data-unreadable", ("002.dcm",)),
    "text": (lambda f: at(f, 4).write_text("no DICOM" * 99), "data-unreadable", ("002.dcm", "no DICOM file")),
    "no pixels": (lambda f: edit(at(f, 4), PixelData=None), "data-unreadable", ("002.dcm",)),
    "loop": (lambda f: (at(f, 4).unlink(), at(f, 4).symlink_to(at(f, 4))), "data-unreadable", ("002.dcm",)),
    "missing": (lambda f: [file.unlink() for file in f.iterdir()], "data-missing", ("no DICOM file",)),
    "lonely": (lambda f: f.rename(f.with_name("other")), "data-unpaired", ("other",)),
    "mask of another size": (
        lambda f: volume_sets.save(f.parents[2] / "masks" / "patient 0_ct.nii.gz", np.zeros((2, 3, 4), np.uint8)),
        "data-size-mismatch", ("patient 0_ct.nii.gz",),
    ),
    "mask elsewhere": (
        lambda f: volume_sets.save(f.parents[2] / "masks" / "patient 0_ct.nii.gz", np.zeros((28, 26, 10), np.uint8)),
        "data-geometry", ("patient 0_ct.nii.gz",),
    ),
    "two masks": (
        lambda f: (f.parents[2] / "masks" / "patient 0_ct.nii").write_bytes(b""), "data-unpaired", ("two masks",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_with_a_series_is_named(fault: str, tmp_path: Path) -> None:
    spoil, identifier, words = FAULTS[fault]
    spoil(volume_sets.dicom(tmp_path, 1) / "dicom" / "patient 0" / "ct")

    def read() -> None:
        found = data(tmp_path)
        found.read(found.cases("train")[0])

    refused(identifier, read, *words)


def test_a_header_that_promises_more_than_there_is_is_named(tmp_path: Path) -> None:
    folder = dicom_series(tmp_path / "s", body(0)[0], Rows=65535, Columns=65535)
    found = data(tmp_path)
    refused("data-unreadable", lambda: found.read(found.predict_cases(folder)[0]), "000.dcm")


def test_folders_that_hold_nothing_are_named(tmp_path: Path) -> None:
    root = volume_sets.dicom(tmp_path, 1)
    refused("data-missing", lambda: data(root, images=str(root / "gone")).cases("train"), "gone")
    refused("data-missing", lambda: data(root, images=str(root / "masks")).cases("train"), "masks")
    refused("data-missing", lambda: data(root, masks=str(root / "gone")).cases("train"), "gone")
    refused("data-missing", lambda: data(root, masks=str(root / "cache")).cases("train"), "cache")
    (root / "dicom" / "patient" / "0_ct").mkdir(parents=True)
    (root / "dicom" / "patient 0_ct").mkdir()
    for file in (root / "dicom" / "patient 0" / "ct").iterdir():
        (root / "dicom" / "patient 0_ct" / file.name).write_bytes(file.read_bytes())
    refused("data-unpaired", lambda: data(root).cases("train"), "Two series", "patient 0_ct")
    (case,) = data(root).predict_cases(root / "dicom" / "patient 0" / "ct" / "000.dcm")
    assert case.name == "ct"
