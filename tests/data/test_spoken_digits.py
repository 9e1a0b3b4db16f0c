"""Strings of digits: always the same, as long as announced, of speakers that no part shares."""

import io
import math
import tarfile

import numpy as np
import pytest
from tiny_audio import tones, write_wav

from clusterformer.data import spoken_digits
from clusterformer.data.spoken_digits import WORDS, DigitStrings, SpokenDigits
from clusterformer.errors import InputError

SPEAKERS = ("ann", "bob", "cy", "di", "ed", "flo")


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A small set of the published form: the digit is the number of its samples modulo 100."""
    monkeypatch.setattr(spoken_digits, "NUM_RECORDINGS", 120)
    folder = tmp_path / "fsdd"
    folder.mkdir()
    with tarfile.open(folder / "recordings.tar.gz", "w:gz") as archive:
        for digit in range(10):
            for speaker in SPEAKERS:
                for number in range(2):
                    samples = np.resize(tones("mid"), 1000 + 100 * number + digit)
                    file = write_wav(tmp_path / "one.wav", samples)
                    info = tarfile.TarInfo(f"recordings/{digit}_{speaker}_{number}.wav")
                    info.size = file.stat().st_size
                    archive.addfile(info, io.BytesIO(file.read_bytes()))
    return tmp_path


FEW = DigitStrings(min_digits=3, max_digits=6, train=20, valid=10, test=10)


def test_no_speaker_is_in_two_parts(root) -> None:
    for fold in range(6):
        strings = DigitStrings(fold=fold, train=1, valid=1, test=1)
        parts = [SpokenDigits(strings, split, str(root)).speakers for split in ("train", "valid")]
        test = SpokenDigits(strings, "test", str(root)).speakers
        assert test == [SPEAKERS[fold]]
        assert sorted([*parts[0], *parts[1], *test]) == list(SPEAKERS)


def test_strings_are_as_announced_and_always_the_same(root) -> None:
    first, again = (SpokenDigits(FEW, "train", str(root)) for _ in range(2))
    assert len(first.texts) == 20
    assert {len(text.split()) for text in first.texts} <= {3, 4, 5, 6}
    assert len({*first.texts}) > 15
    for index in range(20):
        samples = first.samples(index)
        assert len(samples) == first.num_samples[index]
        assert np.abs(samples).max() <= 1
        np.testing.assert_array_equal(samples, again.samples(index))
    assert first.texts != SpokenDigits(FEW, "test", str(root)).texts[:20]


def test_the_text_is_what_is_joined(root) -> None:
    """Recordings of digit d have 1000 + d or 1100 + d samples: the length tells the digits."""
    quiet = DigitStrings(min_digits=4, max_digits=4, min_pause=0, max_pause=0, test=5)
    digits = SpokenDigits(quiet, "test", str(root))
    for text, length in zip(digits.texts, digits.num_samples, strict=True):
        assert length % 100 == sum(WORDS.index(word) for word in text.split())


@pytest.mark.parametrize("speed", [0.97, 1.01, 0.8])
def test_recordings_are_played_at_the_speed_that_is_given(root, speed: float) -> None:
    one = DigitStrings(min_digits=1, max_digits=1, min_pause=0, max_pause=0, speeds=(speed,))
    digits = SpokenDigits(one, "train", str(root))
    recorded = {1000 + 100 * number + digit for number in range(2) for digit in range(10)}
    assert set(digits.num_samples) <= {math.ceil(samples / speed) for samples in recorded}
    assert len(digits.samples(0)) == digits.num_samples[0]


def test_other_counts_are_refused(root, monkeypatch) -> None:
    monkeypatch.setattr(spoken_digits, "NUM_RECORDINGS", 121)
    spoken_digits.read_digits.cache_clear()
    with pytest.raises(InputError, match="120 recordings, expected 121"):
        SpokenDigits(FEW, "train", str(root))


def test_a_missing_set_says_how_to_get_it(tmp_path) -> None:
    with pytest.raises(InputError, match="`clusterformer prepare fsdd` brings it"):
        SpokenDigits(FEW, "train", str(tmp_path))


def test_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match="fold must be 0 to 5"):
        DigitStrings(fold=6)
    with pytest.raises(InputError, match="max_digits must be at least 10, got 4"):
        DigitStrings(max_digits=4)
    with pytest.raises(InputError, match=r"speeds must be from 0\.5 to 2"):
        DigitStrings(speeds=(3.0,))


def test_the_published_set_has_3000_recordings(data_root) -> None:
    digits = SpokenDigits(DigitStrings(train=1, valid=1, test=3), "test", str(data_root))
    assert digits.speakers == ["george"]
    assert all(500 < count / 80 < 3000 for count in digits.num_samples)
