from __future__ import annotations

import pytest
import torch
from torch import Tensor

from template.callbacks.drawing import central_slice, overlay, panel, stack
from template.labels import IGNORE_INDEX, class_color

CLASSES = ["background", "liver", "tumour"]
GREEN, ORANGE = class_color(1), class_color(2)


def pixel(picture: Tensor, row: int, column: int) -> tuple[int, ...]:
    return tuple(picture[:, row, column].tolist())


def pixels_of(picture: Tensor, color: tuple[int, int, int]) -> Tensor:
    return (picture == torch.tensor(color, dtype=torch.uint8)[:, None, None]).all(0)


def liver_and_tumour(size: int = 16) -> Tensor:
    mask = torch.zeros(size, size, dtype=torch.uint8)
    mask[2:14, 2:14] = 1
    mask[6:10, 6:10] = 2
    return mask


class TestCentralSlice:
    def test_is_the_slice_with_the_largest_labelled_area(self) -> None:
        mask = torch.zeros(4, 3, 3, dtype=torch.uint8)
        mask[1, 0, :2] = 2  # two pixels of a high label
        mask[2, 1, :] = 1  # three pixels of a low one
        assert central_slice(mask) == 2

    def test_ignored_voxels_do_not_count(self) -> None:
        mask = torch.zeros(4, 3, 3, dtype=torch.uint8)
        mask[0] = IGNORE_INDEX
        mask[3, 0, 0] = 1
        assert central_slice(mask) == 3

    def test_is_the_middle_of_an_empty_volume(self) -> None:
        assert central_slice(torch.zeros(7, 3, 3, dtype=torch.uint8)) == 3


class TestOverlay:
    def test_fills_softly_outlines_fully_and_leaves_the_background(self) -> None:
        picture = torch.full((3, 16, 16), 100, dtype=torch.uint8)
        drawn = overlay(picture, liver_and_tumour(), CLASSES, alpha=0.4)
        assert pixel(drawn, 0, 0) == (100, 100, 100)
        assert pixel(drawn, 4, 4) == tuple(round(0.6 * 100 + 0.4 * value) for value in GREEN)
        assert pixel(drawn, 7, 7) == tuple(round(0.6 * 100 + 0.4 * value) for value in ORANGE)
        assert pixel(drawn, 2, 8) == GREEN
        assert pixel(drawn, 6, 8) == ORANGE

    def test_two_regions_share_one_line(self) -> None:
        drawn = overlay(torch.zeros(3, 16, 16, dtype=torch.uint8), liver_and_tumour(), CLASSES)
        # Round the liver's square of 12 pixels and the tumour's of 4; the liver has none along the tumour.
        assert int(pixels_of(drawn, GREEN).sum()) == 4 * 12 - 4
        assert int(pixels_of(drawn, ORANGE).sum()) == 4 * 4 - 4

    def test_a_region_has_no_line_along_the_edge_of_the_picture(self) -> None:
        mask = torch.ones(5, 5, dtype=torch.int64)
        drawn = overlay(torch.zeros(3, 5, 5, dtype=torch.uint8), mask, CLASSES, alpha=0.25)
        assert drawn.flatten(1).unique(dim=1).flatten().tolist() == [round(value / 4) for value in GREEN]

    def test_lines_grow_with_the_picture(self) -> None:
        mask = torch.zeros(20, 1800, dtype=torch.uint8)
        mask[:, 900:] = 1
        drawn = overlay(torch.zeros(3, 20, 1800, dtype=torch.uint8), mask, CLASSES)
        assert pixels_of(drawn, GREEN)[10].nonzero().flatten().tolist() == [900, 901, 902]

    def test_ignored_pixels_are_hatched(self) -> None:
        mask = torch.full((12, 12), IGNORE_INDEX, dtype=torch.uint8)
        drawn = overlay(torch.full((3, 12, 12), 7, dtype=torch.uint8), mask, CLASSES)
        colors = {pixel(drawn, row, column) for row in range(12) for column in range(12)}
        assert colors == {(7, 7, 7), (190, 190, 190)}
        assert int(pixels_of(drawn, (190, 190, 190)).sum()) == 12 * 12 // 3

    def test_leaves_its_input_alone(self) -> None:
        picture, mask = torch.zeros(3, 16, 16, dtype=torch.uint8), liver_and_tumour()
        overlay(picture, mask, CLASSES)
        assert not picture.any()
        assert torch.equal(mask, liver_and_tumour())

    def test_refuses_another_size(self) -> None:
        with pytest.raises(ValueError, match=r"\(4, 5\) pixels cannot carry a mask of \(5, 4\)"):
            overlay(torch.zeros(3, 4, 5, dtype=torch.uint8), torch.zeros(5, 4, dtype=torch.uint8), CLASSES)


class TestPanel:
    # Tiles begin 8 pixels from the left and 29 from the top, 8 pixels apart.
    TOP, LEFT, GAP = 29, 8, 8

    def tile(self, picture: Tensor, position: int, height: int, width: int) -> Tensor:
        left = self.LEFT + position * (width + self.GAP)
        return picture[:, self.TOP : self.TOP + height, left : left + width]

    def test_shows_image_truth_and_prediction_side_by_side(self) -> None:
        image = torch.arange(16, dtype=torch.uint8).mul(16).expand(3, 16, 16)
        truth, prediction = liver_and_tumour(), torch.zeros(16, 16, dtype=torch.uint8)
        drawn = panel(image, truth, prediction, CLASSES)
        big = image.repeat_interleave(16, 1).repeat_interleave(16, 2)  # 16 pixels enlarged to 256
        big_truth = truth.repeat_interleave(16, 0).repeat_interleave(16, 1)
        assert drawn.dtype == torch.uint8
        assert drawn.shape[2] == 3 * 256 + 4 * 8
        assert torch.equal(self.tile(drawn, 0, 256, 256), big)
        assert torch.equal(self.tile(drawn, 1, 256, 256), overlay(big, big_truth, CLASSES))
        assert torch.equal(self.tile(drawn, 2, 256, 256), big)

    @pytest.mark.parametrize(
        ("size", "shown"),
        [((128, 128), (256, 256)), ((97, 211), (194, 422)), ((300, 280), (300, 280)), ((1280, 960), (640, 480))],
    )
    def test_enlarges_by_whole_factors_and_shrinks_photographs(
        self, size: tuple[int, int], shown: tuple[int, int]
    ) -> None:
        image, mask = torch.zeros(3, *size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
        drawn = panel(image, mask, mask, CLASSES, legend=False)
        assert drawn.shape == (3, self.TOP + shown[0] + 8, 3 * shown[1] + 4 * 8)
        assert not self.tile(drawn, 0, *shown).any()

    def test_an_image_of_another_size_than_its_masks_is_brought_to_theirs(self) -> None:
        image = torch.tensor([[10, 20], [30, 40]], dtype=torch.uint8).expand(3, 2, 2)
        mask = torch.zeros(256, 256, dtype=torch.uint8)
        tile = self.tile(panel(image, mask, mask, CLASSES), 0, 256, 256)
        assert [pixel(tile, row, column)[0] for row in (0, 255) for column in (0, 255)] == [10, 20, 30, 40]

    def legend(self, classes: list[str], *masks: Tensor) -> Tensor:
        """What the legend adds below the panel."""
        image, (truth, prediction) = torch.zeros(3, *masks[0].shape, dtype=torch.uint8), masks
        whole = panel(image, truth, prediction, classes)
        bare = panel(image, truth, prediction, classes, legend=False)
        assert torch.equal(whole[:, : bare.shape[1]], bare)
        return whole[:, bare.shape[1] :]

    def test_the_legend_has_a_square_and_a_name_for_each_class(self) -> None:
        empty = torch.zeros(64, 256, dtype=torch.uint8)
        legend = self.legend(CLASSES, empty, empty)
        for color in (GREEN, ORANGE):
            square = pixels_of(legend, color).nonzero()
            assert (square.amax(0) - square.amin(0) + 1).tolist() == [13, 13]
            assert len(square) == 13 * 13
        names = pixels_of(legend, (32, 32, 32)).any(0).nonzero().flatten()  # columns with ink
        green, orange = (int(pixels_of(legend, color).any(0).nonzero().max()) for color in (GREEN, ORANGE))
        assert ((names > green) & (names < orange - 13)).any()
        assert (names > orange).any()

    def test_the_legend_names_ignored_pixels_where_there_are_some(self) -> None:
        empty, ignored = torch.zeros(64, 256, dtype=torch.uint8), torch.zeros(64, 256, dtype=torch.uint8)
        ignored[0, 0] = IGNORE_INDEX
        assert int(pixels_of(self.legend(CLASSES, empty, empty), (190, 190, 190)).sum()) < 13 * 13  # shades of letters
        assert int(pixels_of(self.legend(CLASSES, ignored, empty), (190, 190, 190)).sum()) >= 13 * 13

    def test_a_legend_of_many_classes_shows_those_in_the_picture(self) -> None:
        classes = ["background", *(f"organ {number}" for number in range(1, 21))]
        truth, prediction = torch.zeros(64, 256, dtype=torch.uint8), torch.zeros(64, 256, dtype=torch.uint8)
        truth[0, 0], prediction[0, 0] = 3, 20
        legend = self.legend(classes, truth, prediction)
        shown = [label for label in range(1, 21) if int(pixels_of(legend, class_color(label)).sum()) >= 13 * 13]
        assert shown == [3, 20]

    def test_a_long_legend_takes_several_lines(self) -> None:
        classes = ["background", *(f"an organ of the number {number}" for number in range(1, 8))]
        empty = torch.zeros(256, 60, dtype=torch.uint8)
        legend = self.legend(classes, empty, empty)
        squares = [pixels_of(legend, class_color(label)).nonzero() for label in range(1, 8)]
        assert all(len(square) == 13 * 13 for square in squares)
        assert len({int(square[:, 0].min()) for square in squares}) > 1

    def test_titles_stay_above_their_tiles(self) -> None:
        mask = torch.zeros(256, 256, dtype=torch.uint8)
        drawn = panel(torch.zeros(3, 256, 256, dtype=torch.uint8), mask, mask, CLASSES, name="long " * 40, legend=False)
        titles = drawn[:, : self.TOP]
        assert (titles[:, :, 8 + 256 : 8 + 256 + 8] == 255).all()
        assert all((titles[:, :, 8 + k * 264 : 8 + k * 264 + 256] < 100).any() for k in range(3))


def test_stack_puts_pictures_under_one_another_on_white() -> None:
    low, high = torch.full((3, 2, 5), 10, dtype=torch.uint8), torch.full((3, 1, 3), 20, dtype=torch.uint8)
    stacked = stack([low, high], gap=1)
    assert stacked.shape == (3, 4, 5)
    assert stacked[0].tolist() == [[10] * 5, [10] * 5, [255] * 5, [20, 20, 20, 255, 255]]
