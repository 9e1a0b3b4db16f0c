"""The named sets of pairs: files, counts and splits, each as published.

Every set is a folder of `.tsv` files. A name that ends in "-part" is for those who have a part of a
set only: its protocol does without the missing files.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.cache import data_folder
from clusterformer.data.corpora import Split, deal
from clusterformer.data.tables import Pair, read_pairs
from clusterformer.errors import InputError

_log = logging.getLogger(__name__)

InferenceCorpus = Literal[
    "snli", "snli-part", "mnli", "mnli-part", "scitail", "scitail-part", "sick"
]
MatchingCorpus = Literal["quora", "quora-part", "wikiqa", "wikiqa-part"]
PairCorpus = InferenceCorpus | MatchingCorpus


class _Protocol(NamedTuple):
    """Which files train, validate and test; None: a tenth of the training pairs does."""

    folder: str
    train: tuple[str, ...] = ("train",)
    valid: str | None = "dev"
    test: str | None = "test"


_PROTOCOLS: dict[str, _Protocol] = {
    "snli": _Protocol("snli"),
    "snli-part": _Protocol("snli", ("dev",), None, "test"),
    "mnli": _Protocol("mnli", valid="dev-matched", test="dev-mismatched"),
    "mnli-part": _Protocol("mnli-subset", ("train",), None, "eval"),
    "scitail": _Protocol("scitail"),
    "scitail-part": _Protocol("scitail", ("dev",), None, None),
    "sick": _Protocol("sick", valid="trial"),
    "quora": _Protocol("quora"),
    "quora-part": _Protocol("quora", ("dev", "qqp-subset-train"), None, "test"),
    "wikiqa": _Protocol("wikiqa"),
    "wikiqa-part": _Protocol("wikiqa", ("train",), None, "dev"),
}

_PAIRS: dict[str, dict[str, int]] = {
    "snli": {"train": 549_367, "dev": 9_842, "test": 9_824},
    "mnli": {"train": 392_702, "dev-matched": 9_815, "dev-mismatched": 9_832},
    "mnli-subset": {"train": 3_000, "eval": 7_469},
    "scitail": {"train": 23_596, "dev": 1_304, "test": 2_126},
    "sick": {"train": 4_500, "trial": 500, "test": 4_927},
    "quora": {"train": 384_348, "dev": 10_000, "test": 10_000, "qqp-subset-train": 1_897},
    "wikiqa": {"train": 20_360, "dev": 2_733, "test": 6_165},
}
_QUESTIONS: dict[str, int] = {"train": 873, "dev": 126, "test": 243}

_COLUMNS: dict[str, dict[str, Any]] = {
    "sick": {
        "first_column": "sentence_A",
        "second_column": "sentence_B",
        "label_column": "entailment_judgment",
    },
    "wikiqa": {"group_column": 1, "first_column": 2, "second_column": 3, "label_column": 4},
}
_LABELS: dict[str, dict[str, str]] = {
    "snli": {"0": "entailment", "1": "neutral", "2": "contradiction"},
    "scitail": {"0": "entails", "1": "neutral"},
}


def read_pair_corpus(
    name: PairCorpus, split: Split, *, root: str | Path | None = None
) -> list[Pair]:
    """Read one part of a named set.

    Pairs without a gold label ("-") are dropped, as usual; so are the answers to a question that
    has no right one.

    Args:
        name: Of the set.
        split: "train", "valid" or "test".
        root: Folder of the data sets; None for the usual one.

    Raises:
        InputError: if the set is not there, or not complete.
    """
    protocol = _PROTOCOLS[name]
    folder = data_folder(root) / protocol.folder
    for needed in filter(None, (*protocol.train, protocol.valid, protocol.test)):
        _check_presence(name, folder / f"{needed}.tsv")
    files: dict[Split, str | None] = {
        "train": None,
        "valid": protocol.valid,
        "test": protocol.test,
    }
    file = files[split]
    if file is not None:
        return _read(folder / f"{file}.tsv")
    pairs = [pair for file in protocol.train for pair in _read(folder / f"{file}.tsv")]
    missing: list[Split] = [part for part in ("valid", "test") if files[part] is None]
    return hold_out_pairs(pairs, split, missing)


def hold_out_pairs(pairs: list[Pair], split: Split, held: Sequence[Split]) -> list[Pair]:
    """One part of `pairs`: about a tenth for each of `held`, the rest to train.

    Answers to one question stay together, and so do pairs with one first text.
    """
    keys = [pair.group or pair.first for pair in pairs]
    names = list(dict.fromkeys(keys))
    if len(names) <= len(held):
        raise InputError(
            f"{pairs[0].where}: only {len(names)} different first texts, too few to hold some out "
            f"to {' and '.join(held)}; give files for that"
        )
    parts = dict(zip(names, deal(["" for _ in names], 10), strict=True))
    wanted = {held.index(split)} if split in held else set(range(len(held), 10))
    return [pair for pair, key in zip(pairs, keys, strict=True) if parts[key] in wanted]


def _check_presence(name: PairCorpus, path: Path) -> None:
    if path.exists():
        return
    hint = "" if name.endswith("-part") else f"; `clusterformer prepare {name}` brings it"
    if f"{name}-part" in _PROTOCOLS:
        hint += f", or train on what is there: name {name}-part"
    where = "data.root, or $CLUSTERFORMER_DATA, is the folder of the sets"
    raise InputError(f"{name}: no file {path}{hint}; {where}")


def _read(path: Path) -> list[Pair]:
    folder = path.parent.name
    columns = {"first_column": 1, "second_column": 2, "label_column": 3}
    # some sets were published with texts that lack a word
    found = read_pairs(path, **(columns | _COLUMNS.get(folder, {})), allow_empty=True)
    names = _LABELS.get(folder, {})
    pairs = [
        pair._replace(label=names.get(pair.label, pair.label.lower()))
        for pair in found
        if pair.label != "-"
    ]
    if len(pairs) < len(found):
        unlabelled = len(found) - len(pairs)
        rank_zero_only(_log.info)(f"{path}: dropped {unlabelled} pairs without a gold label")
    _check_count(path, "pairs", len(pairs), _PAIRS[folder][path.stem])
    if folder != "wikiqa":
        return pairs
    answered = {pair.group for pair in pairs if pair.label == "1"}
    _check_count(path, "questions with a right answer", len(answered), _QUESTIONS[path.stem])
    return [pair for pair in pairs if pair.group in answered]


def _check_count(path: Path, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise InputError(f"{path}: {found} {what}, expected {expected}; the data set is changed")
