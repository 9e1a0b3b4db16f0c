"""Byte-pair encoding by the `tokenizers` library: training, loading and the bytes of its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from clusterformer.errors import InputError

NUM_BYTES = 256
"""Tokens that every vocabulary holds beside the special ones: the single bytes."""

_MAX_WORDS = 500_000  # different words counted at once


def tokenizers_library() -> Any:
    """Import the `tokenizers` library.

    Raises:
        InputError: if it is not installed, with the command that installs it.
    """
    try:
        import tokenizers
    except ImportError:
        raise InputError(
            "byte-pair encoding needs the tokenizers library: pip install 'clusterformer[text]'"
        ) from None
    return tokenizers


def load_byte_pairs(json: str) -> Any:
    """Make the library's tokenizer from its JSON; no text can spell one of its special tokens."""
    bpe = tokenizers_library().Tokenizer.from_str(json)
    bpe.encode_special_tokens = True  # "<pad>" in a text is five characters like any others
    return bpe


def train_byte_pairs(
    bpe: Any, texts: Iterable[str], *, vocab_size: int, special_tokens: Sequence[str]
) -> str:
    """Learn byte pairs.

    Args:
        bpe: The library's tokenizer, with the pre-tokenizer that it is to have.
        texts: Training texts.
        vocab_size: Number of tokens, special ones and single bytes included; fewer if the texts
            have no more.
        special_tokens: The first tokens, which no text spells.

    Returns:
        The library's JSON of the trained tokenizer.
    """
    library = tokenizers_library()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe.to_str()


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count words between spaces; with too many different ones, drop the rarest.

    The library needs a kilobyte for each word, and rare words decide no byte pair.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split(" "))
        min_count = 1
        while len(counts) > _MAX_WORDS // min(min_count, 2):
            min_count += 1
            counts = Counter({word: count for word, count in counts.items() if count >= min_count})
    del counts[""]
    return counts


def repeat_words(counts: Counter[str]) -> Iterator[str]:
    """Yield texts that hold each word as often as counted, for a library that counts texts."""
    for word, count in counts.items():
        for first in range(0, count, 1000):
            yield " ".join([word] * min(1000, count - first))


def byte_table() -> dict[str, int]:
    """Return the byte for each character of byte-level encoding (the table of GPT-2)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return {chr(byte) if byte in printable else chr(next(others)): byte for byte in range(256)}
