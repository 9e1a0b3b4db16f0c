"""Tiny recordings: each word is a tone of its own."""

import wave
from pathlib import Path

import numpy as np

TONES = {"low": 300.0, "mid": 900.0, "high": 2200.0}


def tones(words: str, rate: int = 8000, seconds: float = 0.12) -> np.ndarray:
    """Samples of words in quiet noise, a pause around each."""
    times = np.arange(int(rate * seconds)) / rate
    pause = np.zeros(int(rate * 0.06))
    parts = [pause]
    for word in words.split():
        parts += [0.5 * np.sin(2 * np.pi * TONES[word] * times), pause]
    samples = np.concatenate(parts)
    return samples + 0.01 * np.random.default_rng(0).standard_normal(len(samples))


def write_wav(path: Path, samples: np.ndarray, rate: int = 8000, width: int = 2) -> Path:
    """Write samples from -1 to 1, (S,) or (S, channels)."""
    whole = np.round(np.clip(samples, -1, 1) * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    data = whole.astype(f"<i{width}" if width != 3 else "<i4")
    raw = data.tobytes()
    if width == 1:
        raw = (whole + 128).astype(np.uint8).tobytes()
    elif width == 3:
        raw = data.reshape(-1).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(raw)
    return path


def write_table(folder: Path, size: int, name: str = "train.tsv", seed: int = 0) -> Path:
    """Write recordings of two to five tones, and the table that lists them."""
    generator = np.random.default_rng(seed)
    lines = ["audio\ttext"]
    for index in range(size):
        words = " ".join(generator.choice(list(TONES), size=generator.integers(2, 6)))
        path = write_wav(folder / f"{name}-{index}.wav", tones(words))
        lines.append(f"{path.name}\t{words}")
    table = folder / name
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table
