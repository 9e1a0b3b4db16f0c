"""Catalogue of the named data sets: addresses, licences and counts, and their converters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from clusterformer.data.prepare.archives import Converter, copy_converter, unzip_converter
from clusterformer.data.prepare.convert_books import (
    convert_gutenberg,
    convert_pg19,
    gutenberg_books,
)
from clusterformer.data.prepare.convert_labelled_text import (
    column_converter,
    convert_mrpc,
    convert_newsgroups,
    convert_sick,
    convert_stsb,
    inference_converter,
    two_class_converter,
)
from clusterformer.data.prepare.convert_parallel_text import (
    convert_iwslt14,
    convert_multi30k,
    convert_tatoeba,
    convert_wmt14,
)
from clusterformer.data.prepare.convert_python_library import convert_stdlib
from clusterformer.data.prepare.convert_speech import convert_fsdd, convert_librispeech
from clusterformer.data.prepare.convert_wikipedia import english_tables, wikipedia_converter
from clusterformer.errors import InputError
from clusterformer.wording import suggested

Terms = Literal["open", "accept", "by hand"]

_SPLITS = ("train", "dev", "test")
_LABELS = ("entailment", "neutral", "contradiction")
_MNLI = {"train": "train", "dev_matched": "dev-matched", "dev_mismatched": "dev-mismatched"}
_WIKITEXT = ("train", "valid", "test")
_MNIST = tuple(
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
_GLOVE = ("glove.6B.100d.txt", "glove.6B.300d.txt")


def _glue(archive: str, top: str, num_columns: int) -> Converter:
    """Make a converter for GLUE's tables with labels: all columns, with the header if any."""
    parts = {f"{top}/{part}.tsv": part for part in ("train", "dev")}
    return column_converter(archive, parts, range(num_columns))


CONVERTERS: dict[str, Converter] = {
    "mr": two_class_converter("mr", "rt-polarity.neg", "rt-polarity.pos", "cp1252"),
    "subj": two_class_converter("subj", "subj.objective", "subj.subjective", "cp1252"),
    "cr": two_class_converter("cr", "custrev.neg", "custrev.pos", "ascii"),
    "mpqa": two_class_converter("mpqa", "mpqa.neg", "mpqa.pos", "ascii"),
    "20news": convert_newsgroups,
    "snli": inference_converter(
        "snli_1.0.zip",
        {f"snli_1.0/snli_1.0_{part}.jsonl": part for part in _SPLITS},
        {label: str(number) for number, label in enumerate(_LABELS)},
    ),
    "mnli": inference_converter(
        "multinli_1.0.zip",
        {f"multinli_1.0/multinli_1.0_{part}.jsonl": name for part, name in _MNLI.items()},
        {label: label for label in _LABELS},
    ),
    "scitail": column_converter(
        "SciTailV1.1.zip",
        {f"SciTailV1.1/tsv_format/scitail_1.0_{part}.tsv": part for part in _SPLITS},
        [0, 1, 2],
    ),
    "stsb": convert_stsb,
    "cola": _glue("CoLA.zip", "CoLA", 4),
    "sst2": _glue("SST-2.zip", "SST-2", 2),
    "mrpc": convert_mrpc,
    "rte": _glue("RTE.zip", "RTE", 4),
    "qnli": _glue("QNLIv2.zip", "QNLI", 4),
    "sick": convert_sick,
    "quora": column_converter(
        "Quora_question_pair_partition.zip",
        {f"Quora_question_pair_partition/{part}.tsv": part for part in _SPLITS},
        [1, 2, 0],
    ),
    "wikiqa": column_converter(
        "WikiQACorpus.zip",
        {f"WikiQACorpus/WikiQA-{part}.tsv": part for part in _SPLITS},
        [0, 1, 5, 6],
        header=True,
    ),
    "multi30k": convert_multi30k,
    "iwslt14": convert_iwslt14,
    "wmt14": convert_wmt14,
    "tatoeba": convert_tatoeba,
    "wikitext2": unzip_converter(
        "wikitext-2-v1.zip",
        {f"wikitext-2/wiki.{part}.tokens": f"{part}.txt.gz" for part in _WIKITEXT},
    ),
    "gutenberg": convert_gutenberg,
    "pg19": convert_pg19,
    "stdlib": convert_stdlib,
    "wikipedia": wikipedia_converter("wikipedia"),
    "wikipedia-simple": wikipedia_converter("wikipedia-simple"),
    "mnist": copy_converter(*_MNIST),
    "fsdd": convert_fsdd,
    "librispeech": convert_librispeech,
    "glove": unzip_converter("glove.6B.zip", {file: file for file in _GLOVE}),
}


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch.

    Attributes:
        url: Address; empty if only a person can fetch it.
        name: Name here and on a mirror; by default the last part of the address.
        size: Number of bytes; 0 if unknown.
        checksum: "sha256:..." or "md5:..."; empty if none is published.
    """

    url: str = ""
    name: str = ""
    size: int = 0
    checksum: str = ""

    @property
    def file(self) -> str:
        """Name of the file, given or from its address."""
        return self.name or self.url.rpartition("/")[2]


@dataclass(frozen=True)
class PublishedSet:
    """A named set; catalogue.yaml explains the fields."""

    name: str
    task: str
    licence: str
    page: str
    contents: dict[str, int]
    remotes: tuple[RemoteFile, ...] = ()
    terms: Terms = "open"
    folder: str = ""
    size: int = 0
    needs: str = ""

    @property
    def converter(self) -> Converter:
        """Function that makes the set's files from the downloads."""
        return CONVERTERS[self.name]

    @property
    def bytes(self) -> int:
        """Approximate number of bytes to fetch; 0 if unknown."""
        return self.size or sum(remote.size for remote in self.remotes)

    def folder_in(self, root: Path) -> Path:
        """Folder of the set, under the folder of the data sets."""
        return root / (self.folder or self.name)


@cache
def published_sets() -> dict[str, PublishedSet]:
    """Read all named sets."""
    table = yaml.safe_load(Path(__file__).with_name("catalogue.yaml").read_text(encoding="utf-8"))
    for book in gutenberg_books():
        table["gutenberg"].setdefault("files", []).append({"url": book.url})
        table["gutenberg"]["contents"][f"{book.name}.txt.gz"] = 0
    table["wikipedia"]["files"] = [{"url": url} for url in english_tables()]
    return {
        name: PublishedSet(
            name, remotes=tuple(RemoteFile(**remote) for remote in entry.pop("files", ())), **entry
        )
        for name, entry in table.items()
    }


def published_set(name: str) -> PublishedSet:
    """Look up a set by its name.

    Raises:
        InputError: if there is no set of that name.
    """
    known = published_sets()
    if name not in known:
        raise InputError(f"no data set {name!r}; {suggested(name, known)}")
    return known[name]
