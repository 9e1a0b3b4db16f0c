"""Where the named data sets come from: publishers.yaml, and who makes their files of what comes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from clusterformer.data.prepare import bitext_conversion, books
from clusterformer.data.prepare.conversion import (
    Converter,
    columns,
    copied,
    inference,
    newsgroups,
    sick,
    two_classes,
    unzipped,
)
from clusterformer.errors import InputError

Terms = Literal["open", "accept", "by hand"]

_SPLITS = ("train", "dev", "test")
_LABELS = ("entailment", "neutral", "contradiction")
_MNLI = {"train": "train", "dev_matched": "dev-matched", "dev_mismatched": "dev-mismatched"}
_WIKITEXT = ("train", "valid", "test")
_GLOVE = ("glove.6B.100d.txt", "glove.6B.300d.txt")

CONVERTERS: dict[str, Converter] = {
    "mr": two_classes("mr", "rt-polarity.neg", "rt-polarity.pos", "cp1252"),
    "subj": two_classes("subj", "subj.objective", "subj.subjective", "cp1252"),
    "cr": two_classes("cr", "custrev.neg", "custrev.pos", "ascii"),
    "mpqa": two_classes("mpqa", "mpqa.neg", "mpqa.pos", "ascii"),
    "20news": newsgroups,
    "snli": inference(
        "snli_1.0.zip",
        {f"snli_1.0/snli_1.0_{part}.jsonl": part for part in _SPLITS},
        {label: str(number) for number, label in enumerate(_LABELS)},
    ),
    "mnli": inference(
        "multinli_1.0.zip",
        {f"multinli_1.0/multinli_1.0_{part}.jsonl": name for part, name in _MNLI.items()},
        {label: label for label in _LABELS},
    ),
    "scitail": columns(
        "SciTailV1.1.zip",
        {f"SciTailV1.1/tsv_format/scitail_1.0_{part}.tsv": part for part in _SPLITS},
        [0, 1, 2],
    ),
    "sick": sick,
    "quora": columns(
        "Quora_question_pair_partition.zip",
        {f"Quora_question_pair_partition/{part}.tsv": part for part in _SPLITS},
        [1, 2, 0],
    ),
    "wikiqa": columns(
        "WikiQACorpus.zip",
        {f"WikiQACorpus/WikiQA-{part}.tsv": part for part in _SPLITS},
        [0, 1, 5, 6],
        header=True,
    ),
    "multi30k": bitext_conversion.multi30k,
    "iwslt14": bitext_conversion.iwslt14,
    "wmt14": bitext_conversion.wmt14,
    "tatoeba": bitext_conversion.tatoeba,
    "wikitext2": unzipped(
        "wikitext-2-v1.zip",
        {f"wikitext-2/wiki.{part}.tokens": f"{part}.txt.gz" for part in _WIKITEXT},
    ),
    "gutenberg": books.gutenberg,
    "pg19": books.pg19,
    "mnist": copied,
    "glove": unzipped(
        "glove.6B.zip", {f"glove.6B.{n}d.txt": f"glove.6B.{n}d.txt" for n in (100, 300)}
    ),
}


@dataclass(frozen=True)
class Remote:
    """A file to fetch.

    Attributes:
        url: Its address; empty if only a person can fetch it.
        name: Its name here and on a mirror; by default the last part of its address.
        size: Bytes; 0 if unknown.
        checksum: "sha256:..." or "md5:..."; empty if none is published.
    """

    url: str = ""
    name: str = ""
    size: int = 0
    checksum: str = ""

    @property
    def file(self) -> str:
        """The name."""
        return self.name or self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Published:
    """A named set; see publishers.yaml for what the fields mean."""

    name: str
    task: str
    licence: str
    page: str
    contents: dict[str, int]
    remotes: tuple[Remote, ...] = ()
    terms: Terms = "open"
    folder: str = ""
    size: int = 0

    @property
    def converter(self) -> Converter:
        """Makes its files of what was fetched."""
        return CONVERTERS[self.name]

    @property
    def bytes(self) -> int:
        """To fetch, about; 0 if unknown."""
        return self.size or sum(remote.size for remote in self.remotes)

    def place(self, root: Path) -> Path:
        """Its folder under that of the data sets."""
        return root / (self.folder or self.name)


@cache
def sets() -> dict[str, Published]:
    """All named sets."""
    table = yaml.safe_load(Path(__file__).with_name("publishers.yaml").read_text(encoding="utf-8"))
    for book in books.index():
        table["gutenberg"].setdefault("files", []).append({"url": book.url})
        table["gutenberg"]["contents"][f"{book.name}.txt.gz"] = 0
    return {
        name: Published(
            name, remotes=tuple(Remote(**remote) for remote in entry.pop("files", ())), **entry
        )
        for name, entry in table.items()
    }


def find(name: str) -> Published:
    """A set by its name.

    Raises:
        InputError: if there is none of that name.
    """
    if name not in sets():
        raise InputError(f"no data set {name!r}; there is {', '.join(sets())}")
    return sets()[name]
