"""WordPiece on bytes by the `tokenizers` library: a word is cut into its longest known pieces.

As in BERT (Devlin et al., 2019), a piece that goes on with a word begins with `##`. BERT's own
WordPiece knows characters and drops spaces; here, as in byte pairs, each byte is a piece of last
resort and a space belongs to the word behind it, so that no text is unknown and none is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from clusterformer.data.byte_pairs import NUM_BYTES, tokenizers_library

CONTINUED = "##"
"""Start of a piece that goes on with a word."""

NUM_PIECES = 2 * NUM_BYTES - 1
"""Pieces that every vocabulary holds beside the special ones: each byte, as a start and behind."""

_MAX_WORD = 64  # bytes; the search for the longest piece takes cubic time in a word's length


def train_word_pieces(
    texts: Iterable[str],
    *,
    vocab_size: int,
    special_tokens: Sequence[str],
    lowercase: bool,
    space_before: bool,
) -> str:
    """Learn word pieces; arguments and result are those of `train_byte_pairs`."""
    library = tokenizers_library()
    split = library.pre_tokenizers
    made = library.Tokenizer(
        # some token has to be named; none is used, as each byte is known
        library.models.WordPiece(unk_token=special_tokens[0], max_input_chars_per_word=_MAX_WORD)
    )
    if lowercase:
        made.normalizer = library.normalizers.Lowercase()
    made.pre_tokenizer = split.Sequence(
        [
            split.ByteLevel(add_prefix_space=space_before),
            split.Split("#", "isolated"),  # so that only a continued piece begins with two
            split.Split(library.Regex(f".{{1,{_MAX_WORD}}}"), "isolated"),
        ]
    )
    made.decoder = library.decoders.Sequence(
        [library.decoders.Replace(CONTINUED, ""), library.decoders.ByteLevel()]
    )
    alphabet = split.ByteLevel.alphabet()
    continued = sorted(f"{CONTINUED}{character}" for character in alphabet if character != "#")
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special_tokens, *continued],  # the only way to name first tokens
        initial_alphabet=alphabet,
        continuing_subword_prefix=CONTINUED,
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    found = json.loads(made.to_str())
    found["added_tokens"] = found["added_tokens"][: len(special_tokens)]
    return json.dumps(found, ensure_ascii=False)
