"""The named translation sets: where their files lie, and how many pairs each part has."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from clusterformer.data.bitext import Bitext
from clusterformer.data.cache import data_folder
from clusterformer.errors import InputError

NamedBitext = Literal["multi30k", "iwslt14", "iwslt14-part", "wmt14", "tatoeba"]
Split = Literal["train", "valid", "test"]


class Protocol(NamedTuple):
    """What is agreed on for a set.

    Attributes:
        folder: In the folder of the data sets.
        files: Of each part, with the numbers of pairs allowed.
        direction: Usual source and target language.
        tokenised: Whether its publishers tokenised it (by Moses) and lower-cased it.
    """

    folder: str
    files: dict[Split, tuple[str, tuple[int, ...]]]
    direction: tuple[str, str]
    tokenised: bool


_PROTOCOLS: dict[str, Protocol] = {
    "multi30k": Protocol(
        "multi30k",
        {
            "train": ("tok/train.lc.norm.tok.{}", (29_000,)),
            "valid": ("tok/val.lc.norm.tok.{}", (1_014,)),
            "test": ("tok/test_2016_flickr.lc.norm.tok.{}", (1_000,)),
        },
        ("de", "en"),
        True,
    ),
    "multi30k-raw": Protocol(
        "multi30k",
        {
            "train": ("raw/train.{}", (29_000,)),
            "valid": ("raw/val.{}", (1_014,)),
            "test": ("raw/test_2016_flickr.{}", (1_000,)),
        },
        ("de", "en"),
        False,
    ),
    "iwslt14": Protocol(
        "iwslt14-de-en",
        {
            "train": ("train.{}", (160_239,)),
            "valid": ("valid.{}", (7_283,)),
            "test": ("test.{}", (6_750,)),
        },
        ("de", "en"),
        True,
    ),
    # what of it is free to pass on; the rest as above
    "iwslt14-part": Protocol(
        "iwslt14-de-en",
        {
            "train": ("train-small.{}", (21_487,)),
            "valid": ("valid.{}", (7_283,)),
            "test": ("test.{}", (6_750,)),
        },
        ("de", "en"),
        True,
    ),
    # europarl 7, common crawl and news commentary 9: as published, or without their empty lines
    "wmt14": Protocol(
        "wmt14-en-de",
        {
            "train": ("train.{}", (4_520_620, 4_508_785)),
            "valid": ("newstest2013.{}", (3_000,)),
            "test": ("newstest2014.{}", (3_003,)),
        },
        ("en", "de"),
        False,
    ),
    "tatoeba": Protocol(
        "tatoeba-de-en",
        {
            "train": ("train.tsv", (159_626,)),
            "valid": ("valid.tsv", (5_129,)),
            "test": ("test.tsv", (5_058,)),
        },
        ("de", "en"),
        False,
    ),
}


def protocol(name: NamedBitext, *, raw: bool = False) -> Protocol:
    """The protocol of a set.

    Args:
        name: Of the set; one that ends in "-part" is for those who have a part of a set only.
        raw: multi30k: the text as written instead of tokenised and lower-cased.

    Raises:
        InputError: for raw text of another set.
    """
    if raw and name != "multi30k":
        raise InputError(f"data.raw is for multi30k, got {name}")
    return _PROTOCOLS["multi30k-raw" if raw else name]


def find(
    name: NamedBitext,
    direction: tuple[str | None, str | None],
    root: str | Path | None,
    raw: bool,
    split: Split,
) -> Bitext | None:
    """Find one part of a named set; None where no test part is there.

    Args:
        name: Of the set.
        direction: Languages to translate from and to; None for the usual one.
        root: Folder of the data sets; None for the usual one.
        raw: As in `protocol`.
        split: "train", "valid" or "test".

    Raises:
        InputError: for a language that the set does not have, or a part that is not there.
    """
    _, files, languages, _ = agreed = protocol(name, raw=raw)
    source, target = direction[0] or languages[0], direction[1] or languages[1]
    if sorted((source, target)) != sorted(languages):
        raise InputError(
            f"{name} is between {' and '.join(languages)}, got source_lang {source!r} and "
            f"target_lang {target!r}"
        )
    folder = data_folder(root) / agreed.folder
    pattern, counts = files[split]
    found = [_existing(folder / pattern.format(language)) for language in (source, target)]
    if found[0] and found[1]:
        columns = (languages.index(source), languages.index(target))
        return Bitext(found[0], found[1], columns if pattern.endswith(".tsv") else None, counts)
    if split == "test":
        return None
    hint = "" if name.endswith("-part") else f"; `clusterformer prepare {name}` brings it"
    if f"{name}-part" in _PROTOCOLS:
        hint += f", or train on what is there: name {name}-part"
    raise InputError(
        f"{name}: no file {folder / pattern.format(source)}, also with .gz{hint}; "
        "data.root, or $CLUSTERFORMER_DATA, is the folder of the sets"
    )


def _existing(path: Path) -> Path | None:
    packed = path.with_name(f"{path.name}.gz")
    return next((found for found in (path, packed) if found.exists()), None)
