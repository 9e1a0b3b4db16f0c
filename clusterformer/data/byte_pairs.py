"""Byte-pair encoding by the `tokenizers` library: training, loading and the bytes of its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from clusterformer.errors import missing

NUM_BYTES = 256
"""Tokens that every vocabulary holds beside the special ones: the single bytes."""

_MAX_LENGTH = 1000  # characters of a word, each a byte
_MAX_WORDS = 500_000  # different words counted at once


def tokenizers_library() -> Any:
    """Import the `tokenizers` library.

    Raises:
        InputError: if it is not installed, with the command that installs it.
    """
    try:
        import tokenizers
    except ImportError:
        raise missing("subwords need the tokenizers library", "text") from None
    return tokenizers


def load_subwords(json: str) -> Any:
    """Make the library's tokenizer from its JSON; no text can spell one of its special tokens."""
    made = tokenizers_library().Tokenizer.from_str(json)
    made.encode_special_tokens = True  # "<pad>" in a text is five characters like any others
    return made


def train_byte_pairs(
    texts: Iterable[str],
    *,
    vocab_size: int,
    special_tokens: Sequence[str],
    lowercase: bool,
    space_before: bool,
) -> str:
    """Learn byte pairs.

    Args:
        texts: Training texts.
        vocab_size: Number of tokens, special ones and single bytes included; fewer if the texts
            have no more.
        special_tokens: The first tokens, which no text spells.
        lowercase: Whether to ignore case.
        space_before: Whether to encode a text as if a space stood before it.

    Returns:
        The library's JSON of the trained tokenizer.
    """
    library = tokenizers_library()
    made = library.Tokenizer(library.models.BPE())
    if lowercase:
        made.normalizer = library.normalizers.Lowercase()
    words = library.pre_tokenizers.ByteLevel(add_prefix_space=space_before)
    made.pre_tokenizer = library.pre_tokenizers.Sequence([words, _cutting()])
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    made.pre_tokenizer = words
    return made.to_str()


def _cutting() -> Any:
    """Make what cuts huge words for learning, which takes the square of their length.

    Encoding takes linear time, and needs no cuts.
    """
    library = tokenizers_library()
    return library.pre_tokenizers.Split(library.Regex(f".{{{_MAX_LENGTH}}}"), "isolated")


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count words between spaces; with too many different ones, drop the rarest.

    The library needs a kilobyte for each word, and rare words decide no subword.
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


@cache
def byte_table() -> dict[str, int]:
    """Return the byte for each character of byte-level encoding (the table of GPT-2)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return {chr(byte) if byte in printable else chr(next(others)): byte for byte in range(256)}
