"""Converters of speech: recordings as they are, and of LibriSpeech a table of each part."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath

from clusterformer.data.prepare.archives import copy_file, open_tar, tar_files, write_lines
from clusterformer.errors import InputError

PARTS = {"train": "train-clean-100", "valid": "dev-clean", "test": "test-clean"}
"""Published part of each part of ours."""


def convert_fsdd(downloads: Path, folder: Path) -> None:
    """Copy the archive of spoken digits; it has no checksum, so count its recordings.

    Raises:
        InputError: if it has more or fewer recordings than published.
    """
    from clusterformer.data.spoken_digits import NUM_RECORDINGS  # brings NumPy

    path = downloads / "recordings.tar.gz"
    with open_tar(path) as archive:
        found = sum(name.endswith(".wav") for name, _ in tar_files(archive))
    if found != NUM_RECORDINGS:
        raise InputError(
            f"{path}: {found:,} recordings, expected {NUM_RECORDINGS:,}; "
            "remove it to fetch it again"
        )
    copy_file(path, folder / path.name)


def convert_librispeech(downloads: Path, folder: Path) -> None:
    """Unpack the recordings of each part into a folder of its name, and list them in a table."""
    for split, part in PARTS.items():
        (folder / part).mkdir()
        texts: dict[str, str] = {}
        with open_tar(downloads / f"{part}.tar.gz") as archive:
            for path, file in tar_files(archive):
                name = PurePosixPath(path).name
                if name.endswith(".trans.txt"):
                    lines = file.read().decode().splitlines()
                    texts |= {key: text for key, _, text in (line.partition(" ") for line in lines)}
                elif name.endswith(".flac"):
                    with (folder / part / name).open("wb") as target:
                        shutil.copyfileobj(file, target)
        found = {path.stem for path in (folder / part).iterdir()}
        if found != texts.keys():
            odd = sorted(found ^ texts.keys())
            raise InputError(
                f"{part}: {len(odd)} recordings or transcripts alone, such as {odd[0]}"
            )
        rows = (f"{part}/{key}.flac\t{text}" for key, text in sorted(texts.items()))
        write_lines(folder / f"{split}.tsv", ["audio\ttext", *rows])
