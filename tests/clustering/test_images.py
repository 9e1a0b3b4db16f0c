"""Pictures turned, scaled and shifted by chance."""

import numpy as np
import pytest
import torch

from clusterformer.clustering.images import RandomAffine


def test_without_room_for_chance_pictures_stay() -> None:
    images = torch.rand(4, 5 * 7, dtype=torch.float64)
    still = RandomAffine(5, 7, degrees=0, scale=0, shift=0)
    torch.testing.assert_close(still(images), images)


def test_a_quarter_turn_turns_and_nothing_is_stretched(monkeypatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *size, dtype, **_: torch.ones(size, dtype=dtype))
    image = torch.zeros(9, 15)
    image[4, 4:11] = 1.0  # a line of 7
    turned = RandomAffine(9, 15, degrees=90, scale=0, shift=0)(image.view(1, -1)).view(9, 15)
    expected = torch.zeros(9, 15)
    expected[1:8, 7] = 1.0
    torch.testing.assert_close(turned, expected, atol=1e-5, rtol=0)


def test_each_picture_goes_its_own_way_within_bounds_and_repeats() -> None:
    image = torch.zeros(1, 41, 41)
    image[:, 19:22, 19:22] = 1.0
    shift = RandomAffine(41, 41, degrees=0, scale=0, shift=0.1)
    torch.manual_seed(0)
    shifted = shift(image.view(1, -1).expand(200, -1))
    torch.manual_seed(0)
    assert shifted.equal(shift(image.view(1, -1).expand(200, -1)))
    assert len(np.unique(shifted.numpy(), axis=0)) == 200
    offsets = torch.arange(41.0) - 20
    across = shifted.view(-1, 41, 41).sum(1) @ offsets / 9
    assert 3 < across.abs().max() <= 4.1


def test_other_widths_are_refused_though_they_would_divide() -> None:
    with pytest.raises(ValueError, match="images of 4 x 4 have 16 columns, got 8"):
        RandomAffine(4, 4)(torch.zeros(2, 8))
