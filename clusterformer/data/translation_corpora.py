"""Named translation sets: the files of each split, with their published counts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from clusterformer.data.bitext import Bitext
from clusterformer.data.named_sets import Split, data_folder, missing_file
from clusterformer.errors import InputError

TranslationCorpus = Literal["multi30k", "iwslt14", "iwslt14-part", "wmt14", "tatoeba"]


class TranslationProtocol(NamedTuple):
    """The published conventions of a named translation set.

    Attributes:
        folder: Subfolder of the folder of the data sets.
        files: Pattern of the file names of each split, and the numbers of pairs allowed.
        direction: Usual source and target language.
        tokenised: Whether its publishers tokenised it (by Moses) and lower-cased it.
    """

    folder: str
    files: dict[Split, tuple[str, tuple[int, ...]]]
    direction: tuple[str, str]
    tokenised: bool


_PROTOCOLS: dict[str, TranslationProtocol] = {
    "multi30k": TranslationProtocol(
        "multi30k",
        {
            "train": ("tok/train.lc.norm.tok.{}", (29_000,)),
            "valid": ("tok/val.lc.norm.tok.{}", (1_014,)),
            "test": ("tok/test_2016_flickr.lc.norm.tok.{}", (1_000,)),
        },
        ("de", "en"),
        True,
    ),
    "multi30k-raw": TranslationProtocol(
        "multi30k",
        {
            "train": ("raw/train.{}", (29_000,)),
            "valid": ("raw/val.{}", (1_014,)),
            "test": ("raw/test_2016_flickr.{}", (1_000,)),
        },
        ("de", "en"),
        False,
    ),
    "iwslt14": TranslationProtocol(
        "iwslt14-de-en",
        {
            "train": ("train.{}", (160_239,)),
            "valid": ("valid.{}", (7_283,)),
            "test": ("test.{}", (6_750,)),
        },
        ("de", "en"),
        True,
    ),
    # the files that may be passed on freely; validation and test as above
    "iwslt14-part": TranslationProtocol(
        "iwslt14-de-en",
        {
            "train": ("train-small.{}", (21_487,)),
            "valid": ("valid.{}", (7_283,)),
            "test": ("test.{}", (6_750,)),
        },
        ("de", "en"),
        True,
    ),
    # europarl 7, common crawl and news commentary 12; every hundredth line of them validates
    "wmt14": TranslationProtocol(
        "wmt14-en-de",
        {
            "train": ("train.{}", ()),
            "valid": ("valid.{}", ()),
            "test": ("newstest2014.{}", (3_003,)),
        },
        ("en", "de"),
        False,
    ),
    "tatoeba": TranslationProtocol(
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


def translation_protocol(name: TranslationCorpus, *, raw: bool = False) -> TranslationProtocol:
    """Look up the protocol of a named set.

    Args:
        name: Name of the set; one that ends in "-part" needs only some of its files.
        raw: multi30k: the text as written instead of tokenised and lower-cased.

    Raises:
        InputError: for raw text of another set.
    """
    if raw and name != "multi30k":
        raise InputError(f"data.raw is for multi30k, got {name}")
    return _PROTOCOLS["multi30k-raw" if raw else name]


def find_bitext(
    name: TranslationCorpus,
    direction: tuple[str | None, str | None],
    root: str | Path | None,
    raw: bool,
    split: Split,
) -> Bitext | None:
    """Find one split of a named set; None if there is no test split.

    Args:
        name: Name of the set.
        direction: Source and target language; None for the usual one.
        root: Folder of the data sets; None for the default one.
        raw: Raw text, as in `translation_protocol`.
        split: "train", "valid" or "test".

    Raises:
        InputError: for a language that the set does not have, or a missing split.
    """
    _, files, languages, _ = protocol = translation_protocol(name, raw=raw)
    source, target = direction[0] or languages[0], direction[1] or languages[1]
    if sorted((source, target)) != sorted(languages):
        raise InputError(
            f"{name} is between {' and '.join(languages)}, got source_lang {source!r} and "
            f"target_lang {target!r}"
        )
    folder = data_folder(root) / protocol.folder
    pattern, counts = files[split]
    found = [_existing(folder / pattern.format(language)) for language in (source, target)]
    if found[0] and found[1]:
        columns = (languages.index(source), languages.index(target))
        return Bitext(found[0], found[1], columns if pattern.endswith(".tsv") else None, counts)
    if split == "test":
        return None
    raise missing_file(name, f"{folder / pattern.format(source)}, also with .gz", _PROTOCOLS)


def _existing(path: Path) -> Path | None:
    packed = path.with_name(f"{path.name}.gz")
    return next((found for found in (path, packed) if found.exists()), None)
