"""The text of a language as a model reads and writes it: Moses tokens, lower case, or as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clusterformer.errors import InputError

UNUSUAL = re.compile(r"[^\w ,.?!:;/'&-]|  | [:;]|''")
"""Without any of it Moses' normaliser, with its dozens of rules, leaves a text as it is."""


@dataclass(frozen=True)
class TextForm:
    """How text of one language is written down for the model, and back.

    Moses normalises the punctuation and parts words from it, by the sacremoses library; without
    XML escapes, so that `&` stays `&`.

    Attributes:
        language: Code, such as "de"; only Moses asks for it.
        moses: Whether the model reads and writes Moses tokens.
        lowercase: Whether it reads and writes lower case.

    Raises:
        InputError: for a language that Moses has no rules for, or none at all.
    """

    language: str | None = None
    moses: bool = False
    lowercase: bool = False

    def __post_init__(self) -> None:
        if self.moses and self.language is None:
            raise InputError("Moses tokens need data.source_lang and data.target_lang")
        if self.moses and self.language not in _languages():
            known = ", ".join(sorted(_languages()))
            raise InputError(f"Moses knows no language {self.language!r}, only {known}")

    def write(self, text: str) -> str:
        """Raw text -> the form of the model."""
        if self.moses:
            if UNUSUAL.search(text):
                text = self._moses.normaliser.normalize(text)
            text = self._moses.tokenizer.tokenize(text.strip(), return_str=True, escape=False)
        return self.fold(text)

    def fold(self, text: str) -> str:
        """Tokenised text -> the form of the model: case as it should be, no spaces around."""
        return (text.lower() if self.lowercase else text).strip()

    def read(self, text: str) -> str:
        """The form of the model -> text for people; the case stays."""
        if not self.moses:
            return text
        return self._moses.detokenizer.detokenize(text.split(), unescape=False)

    @cached_property
    def _moses(self) -> _Moses:
        return _Moses(str(self.language))


class _Moses:
    def __init__(self, language: str) -> None:
        self.normaliser = _library().MosesPunctNormalizer(language)
        self.tokenizer = tokenizer(language)
        self.detokenizer = _library().MosesDetokenizer(language)


def tokenizer(language: str) -> Any:
    """Moses' tokenizer for a language: the library's, only faster, and up to date.

    Since 2018 Moses parts the full stop from the last word of a line whatever that is (plan B .).
    """
    library = _library()

    class Tokenizer(library.MosesTokenizer):  # type: ignore[name-defined]
        """The library's, but for making a set of all letters anew for each word it asks of."""

        letters = frozenset(library.MosesTokenizer.IsAlpha)
        small_letters = frozenset(library.MosesTokenizer.IsLower)

        def isanyalpha(self, text: str) -> bool:
            return not self.letters.isdisjoint(text)

        def islower(self, text: str) -> bool:
            return self.small_letters.issuperset(text)

        def handles_nonbreaking_prefixes(self, text: str) -> str:
            parted = super().handles_nonbreaking_prefixes(text)
            return re.sub(r"(?<=\S)\.$", " .", parted)

    return Tokenizer(language)


def _languages() -> set[str]:
    _library()
    from sacremoses.corpus import NonbreakingPrefixes

    return set(NonbreakingPrefixes().available_langs.values())


def _library() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise InputError(
            "Moses tokens need the sacremoses library: pip install 'clusterformer[text]'"
        ) from None
    return sacremoses
