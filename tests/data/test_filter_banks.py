"""Filter banks and deltas against their formulas, written out with loops."""

import cmath
import math

import pytest
import torch
from tiny_audio import tones

from clusterformer.data.filter_banks import FilterBanks, delta_features
from clusterformer.errors import InputError


def literal(samples: list[float], banks: FilterBanks, fft_size: int) -> list[list[float]]:
    """Log energies of the first frames' filters, by sums over samples and frequencies."""

    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    size, hop = banks.window, banks.hop
    low, high = mel(20), mel(banks.rate / 2)
    step = (high - low) / (banks.num_mels + 1)
    frames = []
    for start in range(0, len(samples) - size + 1, hop):
        frame = samples[start : start + size]
        mean = sum(frame) / size
        windowed = [
            (x - mean) * (0.5 - 0.5 * math.cos(2 * math.pi * n / size)) for n, x in enumerate(frame)
        ]
        energies = [0.0] * banks.num_mels
        for k in range(fft_size // 2 + 1):
            turn = -2j * math.pi * k / fft_size
            power = abs(sum(x * cmath.exp(turn * n) for n, x in enumerate(windowed))) ** 2
            at = mel(k * banks.rate / fft_size)
            for m in range(banks.num_mels):
                left, centre, right = (low + step * (m + side) for side in range(3))
                if left < at <= centre:
                    energies[m] += power * (at - left) / (centre - left)
                elif centre < at < right:
                    energies[m] += power * (right - at) / (right - centre)
        frames.append([math.log(max(energy, 1e-7)) for energy in energies])
    return frames


def test_filter_banks_equal_the_formula() -> None:
    banks = FilterBanks(rate=2000, num_mels=5, deltas=0, window_ms=16)
    samples = torch.from_numpy(tones("low", 2000, 0.03))[:120]
    samples = samples + 0.01 * torch.randn(120)
    found = banks(samples.float())
    expected = torch.tensor(literal(samples.tolist(), banks, 64))
    assert found.shape == (banks.num_frames(len(samples)), 5)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_deltas_equal_the_formula() -> None:
    x = torch.randn(9, 3)
    rows = [x[min(max(t, 0), 8)] for t in range(-2, 11)]
    for t in range(9):
        one, two = rows[t + 3] - rows[t + 1], rows[t + 4] - rows[t]
        torch.testing.assert_close(delta_features(x)[t], (one + 2 * two) / 10)


def test_deltas_stand_beside_the_energies() -> None:
    banks = FilterBanks(rate=8000, num_mels=40, deltas=2)
    features = banks(torch.from_numpy(tones("low high")).float())
    assert features.shape[1] == banks.width == 120
    torch.testing.assert_close(features[:, 40:80], delta_features(features[:, :40]))
    torch.testing.assert_close(features[:, 80:], delta_features(features[:, 40:80]))


@pytest.mark.parametrize(("word", "hertz"), [("low", 300), ("mid", 900), ("high", 2200)])
def test_the_loudest_filter_is_that_of_the_tone(word: str, hertz: float) -> None:
    banks = FilterBanks(rate=8000, num_mels=40, deltas=0)
    frame = banks(torch.from_numpy(tones(word)).float())[10]
    edge = (2595 * math.log10(1 + hertz / 700) - 2595 * math.log10(1 + 20 / 700)) / (
        2595 * math.log10(1 + 4000 / 700) - 2595 * math.log10(1 + 20 / 700)
    )
    assert abs(int(frame.argmax()) + 1 - edge * 41) <= 1


def test_a_recording_without_a_window_has_no_frame() -> None:
    banks = FilterBanks(rate=8000)
    assert banks(torch.zeros(199)).shape == (0, 120)
    assert banks.num_frames(199) == 0
    assert banks(torch.zeros(200)).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_mels": 400, "rate": 8000}, "num_mels 400 is too many for rate 8000"),
        ({"deltas": 3}, "deltas must be 0, 1 or 2, got 3"),
        ({"rate": 0}, "rate must be at least 1000, got 0"),
    ],
)
def test_bad_options_are_refused(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        FilterBanks(**options)
