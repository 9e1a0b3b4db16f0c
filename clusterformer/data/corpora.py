"""The named classification sets: files, counts and splits, each as published.

A tenth of the training part validates, in every set: none of them comes with a validation part.
All splits keep the share of each label and are the same for every seed of a run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from clusterformer.data.cache import data_folder
from clusterformer.data.tables import Row, read_rows
from clusterformer.errors import InputError

Corpus = Literal["mr", "subj", "cr", "mpqa", "20news"]
Split = Literal["train", "valid", "test"]

NUM_FOLDS = 10

_SENTENCES: dict[str, dict[str, int]] = {
    "mr": {"0": 5331, "1": 5331},
    "subj": {"0": 5000, "1": 5000},
    "cr": {"0": 1366, "1": 2405},
    "mpqa": {"0": 7292, "1": 3311},
}
_NEWS: dict[str, int] = {"train": 11_314, "test": 7_532}


def read_corpus(
    name: Corpus,
    split: Split,
    *,
    root: str | Path | None = None,
    fold: int = 0,
    strip: bool = False,
) -> list[Row]:
    """Read one part of a named set.

    Sentence sets (mr, subj, cr, mpqa) have 10-fold cross-validation: fold `fold` tests, a tenth of
    the rest validates. 20news is split by date into train and test.

    Args:
        name: Of the set.
        split: "train", "valid" or "test".
        root: Folder of the data sets; None for the usual one.
        fold: 0..9, the part that tests; not for 20news.
        strip: 20news: drop headers, signatures and quoted lines, as scikit-learn does.

    Raises:
        InputError: if the set is not there, or not complete.
    """
    folder = data_folder(root) / name
    if name == "20news":
        part = "test" if split == "test" else "train"
        rows = _read(folder / f"20news-bydate-{part}.jsonl.gz", "text", "label")
        _check_count(folder, f"{part} posts", len(rows), _NEWS[part])
        if strip:
            rows = [row._replace(text=strip_post(row.text)) for row in rows]
        return rows if split == "test" else hold_out(rows, split)
    rows = _read(folder / f"{name}.tsv", 2, 1)
    counts = Counter(row.label for row in rows)
    for label, expected in _SENTENCES[name].items():
        _check_count(folder, f"sentences with label {label}", counts[label], expected)
    _check_count(folder, "sentences", len(rows), sum(_SENTENCES[name].values()))
    folds = deal([row.label for row in rows], NUM_FOLDS)
    part_rows = [
        row for row, part in zip(rows, folds, strict=True) if (part == fold) == (split == "test")
    ]
    return part_rows if split == "test" else hold_out(part_rows, split)


def hold_out(rows: list[Row], split: Split, held: Sequence[Split] = ("valid",)) -> list[Row]:
    """One part of `rows`: a tenth for each of `held`, the rest to train; shares of labels kept."""
    parts = deal([row.label for row in rows], 10)
    wanted = {held.index(split)} if split in held else set(range(len(held), 10))
    return [row for row, part in zip(rows, parts, strict=True) if part in wanted]


def deal(labels: Sequence[str], num_parts: int) -> list[int]:
    """Deal examples out at random, so that every part gets the same share of each label.

    Returns:
        The part, 0..num_parts - 1, of each example: always the same for the same labels.
    """
    names = np.asarray(labels)
    shuffled = np.random.default_rng(0).permutation(len(names))
    by_label = shuffled[np.argsort(names[shuffled], kind="stable")]
    parts = np.empty(len(names), dtype=np.int64)
    parts[by_label] = np.arange(len(names)) % num_parts
    return parts.tolist()


_QUOTE = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")


def strip_post(post: str) -> str:
    """Drop headers, signature and quoted lines of a news post, by scikit-learn's rules.

    Headers end at the first empty line. The signature follows the last line that is empty or of
    hyphens. Lines that quote, or introduce a quotation, go wherever they stand.
    """
    _, _, body = post.partition("\n\n")
    lines = body.strip().split("\n")
    borders = [number for number, line in enumerate(lines) if not line.strip().strip("-")]
    if borders and borders[-1] > 0:
        body = "\n".join(lines[: borders[-1]])
    return "\n".join(line for line in body.split("\n") if not _QUOTE.search(line))


def _read(path: Path, text_column: int | str, label_column: int | str) -> list[Row]:
    if not path.exists():
        raise InputError(
            f"{path.parent.name}: no file {path}; set data.root, or $CLUSTERFORMER_DATA, to the "
            f"folder that holds {path.parent.name}/{path.name}"
        )
    return read_rows(path, text_column=text_column, label_column=label_column)


def _check_count(folder: Path, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise InputError(f"{folder}: {found} {what}, expected {expected}; the data set is changed")
