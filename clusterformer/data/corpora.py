"""Named sets of labelled texts and pairs: files, counts and splits, each as published.

Where a set comes without a validation part, a tenth of its training part validates. A name that
ends in "-part" is for users who have only some of a set's files: it needs none of the others.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.holding_out import deal, hold_out, hold_out_pairs
from clusterformer.data.labelled_text import Row, TextPair, read_pairs, read_rows
from clusterformer.data.named_sets import Split, check_count, data_folder, missing_file

_log = logging.getLogger(__name__)

ClassificationCorpus = Literal["mr", "subj", "cr", "mpqa", "20news", "cola", "sst2"]
InferenceCorpus = Literal[
    "snli", "snli-part", "mnli", "mnli-part", "scitail", "scitail-part", "sick", "rte", "qnli"
]
MatchingCorpus = Literal["quora", "quora-part", "qqp-part", "mrpc", "wikiqa", "wikiqa-part"]
SimilarityCorpus = Literal["stsb"]
PairCorpus = InferenceCorpus | MatchingCorpus | SimilarityCorpus

NUM_FOLDS = 10

_NUM_SENTENCES: dict[str, dict[str, int]] = {
    "mr": {"0": 5331, "1": 5331},
    "subj": {"0": 5000, "1": 5000},
    "cr": {"0": 1366, "1": 2405},
    "mpqa": {"0": 7292, "1": 3311},
}
FOLDED = (*_NUM_SENTENCES,)
"""Named sets with folds, one of which tests."""
_NUM_POSTS: dict[str, int] = {"train": 11_314, "test": 7_532}
_GLUE_COLUMNS: dict[str, tuple[int | str, int | str]] = {  # of text and label
    "cola": (4, 2),
    "sst2": ("sentence", "label"),
}
_NUM_GLUE: dict[str, dict[str, int]] = {
    "cola": {"train": 8_551, "dev": 1_043},
    "sst2": {"train": 67_349, "dev": 872},
}


class _PairFiles(NamedTuple):
    """Files that train, validate and test; None: a tenth of the training pairs does."""

    folder: str
    train: tuple[str, ...] = ("train",)
    valid: str | None = "dev"
    test: str | None = "test"


_PAIR_FILES: dict[str, _PairFiles] = {
    "snli": _PairFiles("snli"),
    "snli-part": _PairFiles("snli", ("dev",), None, "test"),
    "mnli": _PairFiles("mnli", valid="dev-matched", test="dev-mismatched"),
    "mnli-part": _PairFiles("mnli-subset", ("train",), None, "eval"),
    "scitail": _PairFiles("scitail"),
    "scitail-part": _PairFiles("scitail", ("dev",), None, None),
    "sick": _PairFiles("sick", valid="trial"),
    "quora": _PairFiles("quora"),
    "quora-part": _PairFiles("quora", ("dev", "qqp-subset-train"), None, "test"),
    "qqp-part": _PairFiles("quora", ("qqp-subset-train",), None, "qqp-subset-eval"),
    "stsb": _PairFiles("glue/stsb"),
    "mrpc": _PairFiles("glue/mrpc"),
    "rte": _PairFiles("glue/rte", ("train",), None, "dev"),  # GLUE's test part has no labels
    "qnli": _PairFiles("glue/qnli", ("train",), None, "dev"),
    "wikiqa": _PairFiles("wikiqa"),
    "wikiqa-part": _PairFiles("wikiqa", ("train",), None, "dev"),
}
_NUM_PAIRS: dict[str, dict[str, int]] = {
    "snli": {"train": 549_367, "dev": 9_842, "test": 9_824},
    "mnli": {"train": 392_702, "dev-matched": 9_815, "dev-mismatched": 9_832},
    "mnli-subset": {"train": 3_000, "eval": 7_469},
    "scitail": {"train": 23_596, "dev": 1_304, "test": 2_126},
    "sick": {"train": 4_500, "trial": 500, "test": 4_927},
    "quora": {
        "train": 384_348,
        "dev": 10_000,
        "test": 10_000,
        "qqp-subset-train": 1_897,
        "qqp-subset-eval": 7_252,
    },
    "stsb": {"train": 5_749, "dev": 1_500, "test": 1_379},
    "mrpc": {"train": 3_668, "dev": 408, "test": 1_725},
    "rte": {"train": 2_490, "dev": 277},
    "qnli": {"train": 104_743, "dev": 5_463},
    "wikiqa": {"train": 20_360, "dev": 2_733, "test": 6_165},
}
_NUM_QUESTIONS: dict[str, int] = {"train": 873, "dev": 126, "test": 243}
_COLUMNS: dict[str, dict[str, Any]] = {
    "sick": {
        "first_column": "sentence_A",
        "second_column": "sentence_B",
        "label_column": "entailment_judgment",
    },
    "mrpc": {
        "first_column": "#1 String",
        "second_column": "#2 String",
        "label_column": "Quality",
    },
    "rte": {
        "first_column": "sentence1",
        "second_column": "sentence2",
        "label_column": "label",
    },
    "qnli": {
        "first_column": "question",
        "second_column": "sentence",
        "label_column": "label",
    },
    "wikiqa": {"group_column": 1, "first_column": 2, "second_column": 3, "label_column": 4},
}
_LABELS: dict[str, dict[str, str]] = {
    "snli": {"0": "entailment", "1": "neutral", "2": "contradiction"},
    "scitail": {"0": "entails", "1": "neutral"},
}


def read_corpus(
    name: ClassificationCorpus,
    split: Split,
    *,
    root: str | Path | None = None,
    fold: int = 0,
    strip: bool = False,
) -> list[Row]:
    """Read one split of a named set of labelled texts.

    Sentence sets (mr, subj, cr, mpqa) have 10-fold cross-validation: fold `fold` tests, a tenth of
    the rest validates. 20news is split by date into train and test. Of cola and sst2, the
    development part tests, since the test part has no labels.

    Args:
        name: Name of the set.
        split: "train", "valid" or "test".
        root: Folder of the data sets; None for the default one.
        fold: Fold that tests, 0..9; not for 20news.
        strip: 20news: whether to drop headers, signatures and quoted lines, as scikit-learn does.

    Raises:
        InputError: if the set is missing or incomplete.
    """
    folder = data_folder(root) / name
    if name == "20news":
        part = "test" if split == "test" else "train"
        rows = _read_rows(name, folder / f"20news-bydate-{part}.jsonl.gz", "text", "label")
        check_count(folder, f"{part} posts", len(rows), _NUM_POSTS[part])
        if strip:
            rows = [row._replace(text=strip_post(row.text)) for row in rows]
        return rows if split == "test" else hold_out(rows, split)
    if name in _GLUE_COLUMNS:
        part = "dev" if split == "test" else "train"
        path = folder.parent / "glue" / name / f"{part}.tsv"
        rows = _read_rows(name, path, *_GLUE_COLUMNS[name])
        check_count(path, "sentences", len(rows), _NUM_GLUE[name][part])
        return rows if split == "test" else hold_out(rows, split)
    rows = _read_rows(name, folder / f"{name}.tsv", 2, 1)
    counts = Counter(row.label for row in rows)
    for label, expected in _NUM_SENTENCES[name].items():
        check_count(folder, f"sentences with label {label}", counts[label], expected)
    check_count(folder, "sentences", len(rows), sum(_NUM_SENTENCES[name].values()))
    folds = deal([row.label for row in rows], NUM_FOLDS)
    part_rows = [
        row for row, part in zip(rows, folds, strict=True) if (part == fold) == (split == "test")
    ]
    return part_rows if split == "test" else hold_out(part_rows, split)


def read_pair_corpus(
    name: PairCorpus, split: Split, *, root: str | Path | None = None
) -> list[TextPair]:
    """Read one split of a named set of labelled pairs.

    Pairs without a gold label ("-") are dropped, as is usual; so are the answers to a question that
    has no right answer.

    Args:
        name: Name of the set.
        split: "train", "valid" or "test".
        root: Folder of the data sets; None for the default one.

    Raises:
        InputError: if the set is missing or incomplete.
    """
    files = _PAIR_FILES[name]
    folder = data_folder(root) / files.folder
    for needed in filter(None, (*files.train, files.valid, files.test)):
        path = folder / f"{needed}.tsv"
        if not path.exists():
            raise missing_file(name, path, _PAIR_FILES)
    evaluation: dict[Split, str | None] = {"valid": files.valid, "test": files.test}
    file = evaluation.get(split)
    if file is not None:
        return _read_pairs(folder / f"{file}.tsv")
    pairs = [pair for file in files.train for pair in _read_pairs(folder / f"{file}.tsv")]
    return hold_out_pairs(pairs, split, [part for part in evaluation if not evaluation[part]])


_QUOTE = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")


def strip_post(post: str) -> str:
    """Drop headers, signature and quoted lines of a news post, by scikit-learn's rules.

    Headers end at the first empty line. The signature follows the last line that is empty or
    consists of hyphens. Lines that quote or introduce a quotation are dropped anywhere.
    """
    _, _, body = post.partition("\n\n")
    lines = body.strip().split("\n")
    borders = [number for number, line in enumerate(lines) if not line.strip().strip("-")]
    if borders and borders[-1] > 0:
        body = "\n".join(lines[: borders[-1]])
    return "\n".join(line for line in body.split("\n") if not _QUOTE.search(line))


def _read_rows(name: str, path: Path, text_column: int | str, label_column: int | str) -> list[Row]:
    if not path.exists():
        raise missing_file(name, path)
    return read_rows(path, text_column=text_column, label_column=label_column)


def _read_pairs(path: Path) -> list[TextPair]:
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
    check_count(path, "pairs", len(pairs), _NUM_PAIRS[folder][path.stem])
    if folder != "wikiqa":
        return pairs
    answered = {pair.group for pair in pairs if pair.label == "1"}
    check_count(path, "questions with a right answer", len(answered), _NUM_QUESTIONS[path.stem])
    return [pair for pair in pairs if pair.group in answered]
