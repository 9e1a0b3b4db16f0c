"""Recordings are read as they were written, whatever their width, channels and rate."""

import sys
import wave
from fractions import Fraction

import numpy as np
import pytest
from tiny_audio import tones, write_wav

from clusterformer.data.audio import (
    expanded,
    is_clipped,
    read_audio,
    read_header,
    resample,
    resampled_length,
)
from clusterformer.errors import InputError


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_every_width_come_back(tmp_path, width: int) -> None:
    samples = tones("low high")
    path = write_wav(tmp_path / "a.wav", samples, width=width)
    assert read_header(path) == (len(samples), 8000)
    np.testing.assert_allclose(read_audio(path, 8000), samples, atol=2.0 ** (2 - 8 * width) + 1e-6)
    np.testing.assert_array_equal(read_audio(path, 8000, 100, 300), read_audio(path, 8000)[100:300])


def test_channels_are_averaged(tmp_path) -> None:
    two = np.stack([tones("low"), tones("high")], 1)
    found = read_audio(write_wav(tmp_path / "a.wav", two), 8000)
    np.testing.assert_allclose(found, two.mean(1), atol=1e-4)


@pytest.mark.parametrize("rate", [4000, 11025, 16000, 44100])
def test_another_rate_keeps_length_and_pitch(tmp_path, rate: int) -> None:
    pytest.importorskip("scipy")
    path = write_wav(tmp_path / "a.wav", tones("low", rate, 0.5), rate)
    found = read_audio(path, 8000)
    assert len(found) == resampled_length(read_header(path).num_samples, Fraction(8000, rate))
    spectrum = np.abs(np.fft.rfft(found))
    assert spectrum.argmax() * 8000 / len(found) == pytest.approx(300, abs=4)
    assert np.abs(found).max() == pytest.approx(0.5, abs=0.1)


def test_a_file_cut_short_gives_what_is_there(tmp_path) -> None:
    path = write_wav(tmp_path / "a.wav", tones("low high"))
    path.write_bytes(path.read_bytes()[:-1001])
    assert len(read_audio(path, 8000)) == len(tones("low high")) - 501
    assert read_header(path).num_samples == len(tones("low high"))


@pytest.mark.parametrize("whole", [0, 36, 2**32 - 1])
@pytest.mark.parametrize("size", [0, 0x7FFFF000, 2**32 - 1])
def test_a_wav_without_its_sizes_as_a_pipe_leaves_it_is_read_to_its_end(
    tmp_path, whole: int, size: int
) -> None:
    samples = tones("low")
    path = write_wav(tmp_path / "a.wav", samples)
    data = path.read_bytes()
    comment = b"LIST\x03\0\0\0abc\0"  # ffmpeg puts one before the samples
    header = b"RIFF" + whole.to_bytes(4, "little") + data[8:36] + comment
    path.write_bytes(header + b"data" + size.to_bytes(4, "little") + data[44:])
    assert read_header(path) == (len(samples), 8000)
    np.testing.assert_allclose(read_audio(path, 8000), samples, atol=1e-4)
    np.testing.assert_allclose(read_audio(path, 8000, 50, 90), samples[50:90], atol=1e-4)


@pytest.mark.parametrize("whole", [0, 36, 2**32 - 1])
def test_a_wav_cut_within_its_header_is_refused_by_its_name(tmp_path, whole: int) -> None:
    path = write_wav(tmp_path / "a.wav", tones("low"))
    data = path.read_bytes()
    for length in range(44):
        path.write_bytes((data[:4] + whole.to_bytes(4, "little") + data[8:])[:length])
        for read in (read_header, lambda path: read_audio(path, 8000)):
            with pytest.raises(InputError, match=r"a\.wav"):
                read(path)


def test_what_follows_an_empty_recording_is_no_sound(tmp_path) -> None:
    path = write_wav(tmp_path / "a.wav", tones("low")[:0])
    data = path.read_bytes() + b"LIST\x04\0\0\0abcd"
    path.write_bytes(data[:4] + (len(data) - 8).to_bytes(4, "little") + data[8:])
    assert read_header(path) == (0, 8000)
    assert not len(read_audio(path, 8000))


def test_flac_and_numbers_with_a_point_are_read_by_soundfile(tmp_path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = tones("low high")
    for name, subtype in (("a.flac", "PCM_16"), ("a.wav", "FLOAT")):
        soundfile.write(tmp_path / name, samples, 8000, subtype=subtype)
        assert read_header(tmp_path / name) == (len(samples), 8000)
        np.testing.assert_allclose(read_audio(tmp_path / name, 8000), samples, atol=1e-4)
        np.testing.assert_allclose(
            read_audio(tmp_path / name, 8000, 50, 90), samples[50:90], atol=1e-4
        )
    soundfile.write(tmp_path / "a.wav", samples * np.nan, 8000, subtype="FLOAT")
    with pytest.raises(InputError, match="no finite numbers"):
        read_audio(tmp_path / "a.wav", 8000)


def test_an_extensible_header_of_floating_point_numbers_is_read(tmp_path, monkeypatch) -> None:
    soundfile = pytest.importorskip("soundfile")
    path, samples = tmp_path / "a.wav", tones("low")
    soundfile.write(path, samples, 8000, format="WAVEX", subtype="FLOAT")

    def refusing(*_):
        raise wave.Error("unknown extended format: 00000003-0000-0010-8000-00aa00389b71")

    for python_3_12 in (False, True):
        if python_3_12:
            monkeypatch.setattr(wave, "open", refusing)
        assert read_header(path) == (len(samples), 8000)
        np.testing.assert_allclose(read_audio(path, 8000), samples, atol=1e-7)


def test_wavs_of_over_4_gb_and_of_the_other_byte_order_are_read(tmp_path) -> None:
    soundfile = pytest.importorskip("soundfile")
    for form, endian in (("RF64", "LITTLE"), ("WAV", "BIG")):
        soundfile.write(tmp_path / "a.wav", tones("low"), 8000, format=form, endian=endian)
        assert (tmp_path / "a.wav").read_bytes()[:4] in (b"RF64", b"RIFX")
        assert read_header(tmp_path / "a.wav") == (len(tones("low")), 8000)
        np.testing.assert_allclose(read_audio(tmp_path / "a.wav", 8000), tones("low"), atol=1e-4)


def test_a_flac_cut_short_gives_what_can_be_decoded(tmp_path) -> None:
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "a.flac"
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 40_000)
    soundfile.write(path, samples, 8000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = read_audio(path, 8000)
    assert 8000 < len(found) < 21_000
    np.testing.assert_allclose(found, samples[: len(found)], atol=1e-4)
    np.testing.assert_array_equal(read_audio(path, 8000, 5000, 6000), found[5000:6000])


def test_a_flac_without_its_length_as_a_pipe_leaves_it_is_counted(tmp_path) -> None:
    soundfile = pytest.importorskip("soundfile")
    path, samples = tmp_path / "a.flac", tones("low high low")
    soundfile.write(path, samples, 8000)
    data = bytearray(path.read_bytes())
    data[21] &= 0xF0  # 36 bits of its first block: the number of samples, 0 if unknown
    data[22:26] = bytes(4)
    path.write_bytes(data)
    assert read_header(path) == (len(samples), 8000)
    np.testing.assert_allclose(read_audio(path, 8000), samples, atol=1e-4)
    np.testing.assert_allclose(read_audio(path, 8000, 50, 90), samples[50:90], atol=1e-4)
    np.testing.assert_allclose(read_audio(path, 8000, 50, 10**9), samples[50:], atol=1e-4)
    assert not len(read_audio(path, 8000, len(samples) + 1))


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (24, 0, "a rate of 0 Hz, allowed are 1000 to 768000"),
        (24, 2**32 - 5, "a rate of 4294967291 Hz, allowed are 1000 to 768000"),
        (32, 5 + (40 << 16), "samples of 40 bits, allowed are 8, 16, 24 and 32"),
    ],
)
def test_a_header_with_impossible_numbers_is_refused(tmp_path, at: int, value, message) -> None:
    path = write_wav(tmp_path / "a.wav", tones("low"))
    data = bytearray(path.read_bytes())
    data[at : at + 4] = value.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_header(path)


@pytest.mark.parametrize("name", ["a" * 300 + ".wav", "~nobody-of-this-name/a.wav"])
def test_an_impossible_path_is_one_line(tmp_path, name: str) -> None:
    with pytest.raises(InputError, match=r"aaa|~nobody"):
        read_header(expanded(name))


def test_what_needs_soundfile_says_so(tmp_path, monkeypatch) -> None:
    path = write_wav(tmp_path / "a.wav", tones("low"))
    data = bytearray(path.read_bytes())
    data[20:22] = (3).to_bytes(2, "little")  # numbers with a point
    path.write_bytes(data)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(InputError, match=r"a.wav: neither a plain WAV .*clusterformer\[speech\]"):
        read_header(path)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_clipping_is_found_in_every_width(tmp_path, width: int) -> None:
    loud = np.clip(5 * tones("low"), -1, 1)
    assert is_clipped(read_audio(write_wav(tmp_path / "a.wav", loud, width=width), 8000))
    quiet = write_wav(tmp_path / "b.wav", 1.8 * tones("low"), width=width)
    assert not is_clipped(read_audio(quiet, 8000))


def test_clipping_is_many_samples_at_full_scale() -> None:
    assert is_clipped(np.clip(4 * tones("low"), -1, 1))
    assert not is_clipped(tones("low"))
    assert not is_clipped(np.array([], dtype=np.float32))


def test_resampling_nothing_gives_nothing() -> None:
    assert len(resample(np.zeros(0, dtype=np.float32), Fraction(2))) == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.wav", None, "no such recording"),
        ("a.wav", b"", "not a WAV file"),
        ("a.wav", b"RIFF1234", "not a WAV file"),
        ("a.wav", b"ID3\x04 this is music", "not a WAV file"),
        ("a.flac", b"fLaC", "soundfile|not a recording"),
    ],
)
def test_what_is_no_recording_is_refused_in_one_line(tmp_path, name, content, message) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_audio(path, 8000)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
