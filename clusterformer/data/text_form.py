"""Form in which a translation model reads and writes a language: Moses tokens, lower case."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clusterformer.errors import InputError, missing

UNUSUAL = re.compile(r"[^\w ,.?!:;/'&-]|  | [:;]|''")
"""Matches in every text that Moses' punctuation normaliser, with its dozens of rules, changes."""


@dataclass(frozen=True)
class TextForm:
    """Form of one language's text for the model.

    Moses normalises punctuation and separates it from words, by the sacremoses library; without
    XML escapes, so that `&` stays `&`.

    Attributes:
        language: Language code, such as "de"; needed for Moses only.
        moses: Whether the model reads and writes Moses tokens.
        lowercase: Whether it reads and writes lower case.
        split_hyphens: Whether hyphens within words are tokens, `@-@` (Moses' option -a).

    Raises:
        InputError: for Moses without a language, or with one that it has no rules for.
    """

    language: str | None = None
    moses: bool = False
    lowercase: bool = False
    split_hyphens: bool = False

    def __post_init__(self) -> None:
        if self.split_hyphens and not self.moses:
            raise InputError("split_hyphens is for Moses tokens; set data.moses")
        if self.moses and self.language is None:
            raise InputError("Moses tokens need data.source_lang and data.target_lang")
        if self.moses and self.language not in _languages():
            known = ", ".join(sorted(_languages()))
            raise InputError(f"Moses knows no language {self.language!r}, only {known}")

    def preprocess(self, text: str) -> str:
        """Bring raw text to the form of the model."""
        if self.moses:
            if UNUSUAL.search(text):
                text = self._moses.normaliser.normalize(text)
            text = self._moses.tokenizer.tokenize(
                text.strip(),
                return_str=True,
                escape=False,
                aggressive_dash_splits=self.split_hyphens,
            )
        return self._fold_case(text)

    def read_tokens(self, text: str) -> str:
        """Bring Moses tokens to the form of the model; Moses writes `&apos;` for `'` by default."""
        return self._fold_case(self._moses.detokenizer.unescape_xml(text) if "&" in text else text)

    def detokenise(self, text: str) -> str:
        """Bring text in the form of the model to that for people; the case stays."""
        if not self.moses:
            return text
        return self._moses.detokenizer.detokenize(text.split(), unescape=False)

    def _fold_case(self, text: str) -> str:
        return (text.lower() if self.lowercase else text).strip()

    @cached_property
    def _moses(self) -> _Moses:
        return _Moses(str(self.language))


class _Moses:
    def __init__(self, language: str) -> None:
        self.normaliser = _library().MosesPunctNormalizer(language)
        self.tokenizer = moses_tokenizer(language)
        self.detokenizer = _library().MosesDetokenizer(language)


def moses_tokenizer(language: str) -> Any:
    """Make a Moses tokenizer like that of sacremoses, but faster, and up to date.

    Since 2018 Moses separates the full stop from the last word of a line, whatever the word is.
    """
    library = _library()

    class FastMosesTokenizer(library.MosesTokenizer):  # type: ignore[name-defined]
        """sacremoses' tokenizer, which itself makes a set of all letters again for each word."""

        letters = frozenset(library.MosesTokenizer.IsAlpha)
        small_letters = frozenset(library.MosesTokenizer.IsLower)

        def isanyalpha(self, text: str) -> bool:
            return not self.letters.isdisjoint(text)

        def islower(self, text: str) -> bool:
            return self.small_letters.issuperset(text)

        def handles_nonbreaking_prefixes(self, text: str) -> str:
            separated = super().handles_nonbreaking_prefixes(text)
            return re.sub(r"(?<=\S)\.$", " .", separated)

    return FastMosesTokenizer(language)


def _languages() -> set[str]:
    _library()
    from sacremoses.corpus import NonbreakingPrefixes

    return set(NonbreakingPrefixes().available_langs.values())


def _library() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise missing("Moses tokens need the sacremoses library", "text") from None
    return sacremoses
