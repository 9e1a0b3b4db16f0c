"""Converters of translation sets to parallel text; see archives.py."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO

from clusterformer.data.holding_out import linked_groups
from clusterformer.data.prepare.archives import (
    open_output,
    open_tar,
    open_tar_member,
    read_gzip,
    read_zip_member,
    split_lines,
    write_lines,
)
from clusterformer.errors import InputError

_MULTI30K = ("train", "val", "test_2016_flickr")
_TED = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_SEGMENT = re.compile(rb"<seg id=\"?\d+\"?>\s*(.*?)\s*</seg>", re.DOTALL)

# of IWSLT14, as fairseq prepares it
_MAX_LENGTH = 175  # tokens a side
_MAX_RATIO = 1.5  # of the sides' lengths
_VALID_EVERY = 23  # lines, of which the last validates

# of WMT14, as fairseq prepares it
_WMT_VALID_EVERY = 100


def convert_multi30k(downloads: Path, folder: Path) -> None:
    """Convert Multi30k: the files as they are, all compressed."""
    for part in _MULTI30K:
        for language in ("de", "en"):
            raw = read_gzip(downloads / f"{part}.{language}.gz")
            write_lines(folder / f"raw/{part}.{language}.gz", split_lines(raw))
            name = f"{part}.lc.norm.tok.{language}"
            tokens = (downloads / name).read_bytes()
            write_lines(folder / f"tok/{name}.gz", split_lines(tokens))


def convert_iwslt14(downloads: Path, folder: Path) -> None:
    """Convert IWSLT14 as fairseq's prepare-iwslt14.sh does before BPE, without XML escapes.

    Moses tokens in lower case; pairs of 1 to 175 tokens a side and at most 1.5 times as many on
    one side as on the other; every 23rd of them validates.
    """
    with open_tar(downloads / "de-en.tgz") as archive:
        sides = [
            _tokens(_talks(open_tar_member(archive, f"train.tags.de-en.{lang}").read()), lang)
            for lang in ("de", "en")
        ]
        for lang in ("de", "en"):
            talks = (open_tar_member(archive, f"IWSLT14.{talk}.de-en.{lang}.xml") for talk in _TED)
            lines = (line.replace("’", "'") for talk in talks for line in _segments(talk))
            write_lines(folder / f"test.{lang}.gz", _tokens(lines, lang))
    pairs = [pair for pair in _zip_sides(*sides) if _is_clean(*map(str.split, pair))]
    for column, lang in enumerate(("de", "en")):
        train = [pair[column] for pair in pairs]
        valid = train[_VALID_EVERY - 1 :: _VALID_EVERY]
        del train[_VALID_EVERY - 1 :: _VALID_EVERY]
        write_lines(folder / f"train.{lang}.gz", train)
        write_lines(folder / f"valid.{lang}.gz", valid)


def convert_wmt14(downloads: Path, folder: Path) -> None:
    """Convert WMT14 English-German as fairseq's prepare-wmt14en2de.sh does before Moses and BPE.

    Europarl 7, Common Crawl, then News Commentary 12, without characters that cannot be printed;
    every hundredth line of them validates. newstest2014 tests.
    """
    corpora = {
        "training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en.{}",
        "training-parallel-commoncrawl.tgz": "commoncrawl.de-en.{}",
        "training-parallel-nc-v12.tgz": "training/news-commentary-v12.de-en.{}",
    }
    tested = ["newstest2014-deen-src.en.sgm", "newstest2014-deen-ref.de.sgm"]
    for column, language in enumerate(("en", "de")):
        texts = (
            _corpus(downloads / archive, member.format(language))
            for archive, member in corpora.items()
        )
        with (
            open_output(folder / f"train.{language}.gz") as train,
            open_output(folder / f"valid.{language}.gz") as valid,
        ):
            for number, line in enumerate(chain.from_iterable(texts), 1):
                file = train if number % _WMT_VALID_EVERY else valid
                file.write(f"{line}\n".encode())
        with open_tar(downloads / "test-full.tgz") as archive:
            lines = _segments(open_tar_member(archive, tested[column]))
        write_lines(folder / f"newstest2014.{language}", lines)


def convert_tatoeba(downloads: Path, folder: Path) -> None:
    """Convert Tatoeba: German, English; no sentence of one split occurs in another.

    Pairs that share a sentence, directly or through others, are a group and stay together. A hash
    of the group's first German sentence chooses its split: 94 % train, 3 % validate, 3 % test.
    """
    lines = split_lines(read_zip_member(downloads / "deu-eng.zip", "deu.txt"))
    pairs = [(german, english) for english, german in (line.split("\t")[:2] for line in lines)]
    groups = linked_groups((f"d:{german}", f"e:{english}") for german, english in pairs)
    first: dict[int, str] = {}
    for group, (german, _) in zip(groups, pairs, strict=True):
        first[group] = min(first.get(group, german), german)
    parts: dict[str, list[str]] = {"train.tsv.gz": [], "valid.tsv": [], "test.tsv": []}
    for group, (german, english) in zip(groups, pairs, strict=True):
        value = hashlib.sha256(f"d:{first[group]}".encode()).digest()
        share = int.from_bytes(value[:4], "big") % 100
        part = "valid.tsv" if share < 3 else "test.tsv" if share < 6 else "train.tsv.gz"
        parts[part].append(f"{german}\t{english}")
    for part, rows in parts.items():
        write_lines(folder / part, rows)


def _talks(data: bytes) -> Iterator[str]:
    for line in split_lines(data):
        if not re.search("<(?:url|talkid|keywords)>", line):
            yield re.sub("</?(?:title|description)>", "", line)


def _segments(file: IO[bytes]) -> list[str]:
    found = _SEGMENT.findall(file.read())
    return [" ".join(segment.decode().split()) for segment in found]


def _tokens(lines: Iterable[str], language: str) -> Iterator[str]:
    from clusterformer.data.text_form import moses_tokenizer

    moses = moses_tokenizer(language)
    for line in lines:
        yield " ".join(moses.tokenize(line, escape=False)).lower()


def _is_clean(source: list[str], target: list[str]) -> bool:
    shorter, longer = sorted((len(source), len(target)))
    return shorter > 0 and longer <= _MAX_LENGTH and longer <= _MAX_RATIO * shorter


def _zip_sides(sources: Iterator[str], targets: Iterator[str]) -> list[tuple[str, str]]:
    left, right = list(sources), list(targets)
    if len(left) != len(right):
        raise InputError(f"de-en.tgz: {len(left):,} German and {len(right):,} English lines")
    return list(zip(left, right, strict=True))


def _corpus(archive: Path, member: str) -> Iterator[str]:
    with open_tar(archive) as file:
        for line in open_tar_member(file, member):
            yield _printable(line.decode().rstrip("\n"))


def _printable(line: str) -> str:
    """Turn control characters and the like into spaces, as Moses' remove-non-printing-char does."""
    if line.isprintable():
        return line
    return "".join(" " if unicodedata.category(letter)[0] == "C" else letter for letter in line)
