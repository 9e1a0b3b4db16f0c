"""Tokenizers: what is learnt follows from the training text alone, and survives a checkpoint."""

import json

import pytest
import torch

from clusterformer.data import byte_pairs
from clusterformer.data.stream_tokenizers import (
    ByteTokenizer,
    StreamBytePairTokenizer,
    StreamTokenizer,
    StreamWordPieceTokenizer,
    StreamWordTokenizer,
    stream_tokenizer_from_state,
)
from clusterformer.data.tokenizers import (
    BOS,
    UNK,
    BytePairTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    learn_tokenizer,
    tokenizer_from_state,
)
from clusterformer.errors import InputError
from clusterformer.models.embeddings import PAD
from clusterformer.tasks.metrics import CodeLength, Units

TEXTS = ["The cat sat on the mat .", "the dog didn't sit", "A cat's dog - naïve, isn't it?"] * 2


def train(kind, texts=TEXTS, **options):
    return KINDS[kind].train(texts, **options)


KINDS = {"word": WordTokenizer, "bpe": BytePairTokenizer, "wordpiece": WordPieceTokenizer}
every = pytest.mark.parametrize("kind", KINDS)
subwords = pytest.mark.parametrize("kind", ["bpe", "wordpiece"])


@every
def test_tokens_join_to_the_text(kind):
    tokenizer = train(kind)
    tokens = tokenizer.ids_to_tokens(tokenizer.encode("The dog sat."))
    assert "".join(tokens).replace(" ", "") == "thedogsat."


@every
def test_state_makes_the_same_tokenizer_and_is_plain(kind):
    tokenizer = train(kind)
    again = tokenizer_from_state(json.loads(json.dumps(tokenizer.state())))
    text = "a cat's NEW mat"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.vocab_size == tokenizer.vocab_size
    assert again.state() == tokenizer.state()


@every
def test_training_twice_gives_the_same(kind):
    assert train(kind).state() == train(kind, iter(TEXTS)).state()


@every
def test_text_cannot_spell_padding(kind):
    assert PAD not in train(kind).encode("<pad> <unk>")


@every
def test_text_without_tokens_is_one_unknown(kind):
    assert train(kind).encode("") == [UNK]
    assert train(kind).encode_all(["", "cat"]) == [[UNK], train(kind).encode("cat")]


@every
def test_ids_stay_below_the_vocabulary_size(kind):
    tokenizer = train(kind)
    assert max(max(ids) for ids in tokenizer.encode_all(TEXTS)) < tokenizer.vocab_size


@every
def test_case_counts_if_asked(kind):
    for lowercase in (True, False):
        tokenizer = train(kind, lowercase=lowercase)
        assert (tokenizer.encode("The") == tokenizer.encode("the")) == lowercase


def test_words_are_ordered_by_count_then_alphabet():
    assert train("word", ["b a c a", "d c"]).words == ["a", "c", "b", "d"]


def test_rare_words_and_those_over_the_limit_are_unknown():
    tokenizer = train("word", ["b a c a c", "d b a"], min_count=2, max_words=2)
    assert tokenizer.words == ["a", "b"]
    assert tokenizer.encode("a d c new") == [2, UNK, UNK, UNK]
    assert tokenizer.ids_to_tokens([0, 1, 2]) == ["<pad>", "<unk>", "a"]
    assert tokenizer.decode([2, 3, 1, 0]) == "a b <unk>"


def test_words_are_separated_from_punctuation_and_contractions():
    words = train("word", ["It's naïve, don't! well-made [x]"]).words
    expected = ["it", "'s", "naïve", ",", "do", "n't", "!", "well", "-", "made", "[", "x", "]"]
    assert sorted(words) == sorted(expected)


def test_whitespace_split_leaves_the_rest_whole():
    assert train("word", ["[MAX 3\t4 ]"], split="whitespace", lowercase=False).words == [
        "3",
        "4",
        "[MAX",
        "]",
    ]


@subwords
def test_subwords_know_every_text_and_fill_the_vocabulary(kind):
    size = KINDS[kind].min_vocab_size + 10
    tokenizer = train(kind, vocab_size=size)
    assert tokenizer.vocab_size == size
    text = "the 日本語 ☃ #1 ## ###a"
    ids = tokenizer.encode(text)
    assert UNK not in ids
    assert len(ids) > 4
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("kind", "least"), [("bpe", 259), ("wordpiece", 514)])
def test_a_vocabulary_holds_all_bytes(kind, least):
    assert learn_tokenizer(TEXTS, kind, vocab_size=least).vocab_size == least
    with pytest.raises(InputError, match=f"tokenizer {kind}: at least {least}, got {least - 1}"):
        learn_tokenizer(TEXTS, kind, vocab_size=least - 1)


def test_a_word_is_cut_into_its_longest_pieces():
    """WordPiece looks for the longest piece from the left; byte pairs join pairs as learnt."""
    words = ["un", "unab", "able", "unable", "xable"] * 9 + ["aff", "unaff"] * 5
    tokenizer = WordPieceTokenizer.train(words, vocab_size=600)
    vocabulary = json.loads(tokenizer.state()["json"])["model"]["vocab"]
    pieces = {number: piece for piece, number in vocabulary.items()}
    for word in ("unaffable", "xunable", "unabled", "ableunx"):
        expected, start, rest = [], "", f"Ġ{word}"
        while rest:
            size = max(i for i in range(len(rest) + 1) if start + rest[:i] in vocabulary)
            expected.append(start + rest[:size])
            start, rest = "##", rest[size:]
        assert [pieces[i] for i in tokenizer.encode(word)] == expected
    assert "Ġunable" in vocabulary
    assert "##able" in vocabulary


def test_a_word_without_end_is_cut():
    """The library's search takes cubic time in a word's length."""
    text = "ab" * 10_000
    assert train("wordpiece").decode(train("wordpiece").encode(text)) == text


def test_a_word_without_end_is_cut_to_learn_byte_pairs_and_not_to_encode() -> None:
    word = "a" * 100_000
    tokenizer = StreamBytePairTokenizer.train([word], vocab_size=300)
    assert max(map(len, tokenizer.token_bytes)) == 1000
    ids = tokenizer.encode(word)
    assert len(ids) < 200
    assert tokenizer.decode(ids) == word


def test_of_too_many_words_the_frequent_stay(monkeypatch):
    texts = [f"der hund {'rot ' * (i % 3)} w{i}x" for i in range(3000)]
    frequent = [("der", 3000), ("hund", 3000), ("rot", 3000)]
    assert len(byte_pairs.count_words(texts)) == 3003
    monkeypatch.setattr(byte_pairs, "_MAX_WORDS", 100)
    assert byte_pairs.count_words(texts).most_common(3) == frequent
    assert len(byte_pairs.count_words(texts)) <= 100
    tokens = json.loads(BytePairTokenizer.train(texts, vocab_size=270).state()["json"])
    assert {"Ġder", "Ġhund", "Ġrot"} <= set(tokens["model"]["vocab"])


# Running text: nothing is lost, bytes and words add up.

DOCUMENTS = [
    "",
    "one",
    " = Robert <unk> = \n \n Robert is an actor . \n",
    "naïve – 東京 🌊\tand\r\n\n\n<text><pad> </s> x",
    "no end of line\n  indented  twice",
    "# 1\n## 1.1 #a##b ###\n",
]
LEARNT = "the theatre and the actor – naïve 東京\n" * 20


def lossless() -> list[StreamTokenizer]:
    return [
        ByteTokenizer(),
        StreamBytePairTokenizer.train([LEARNT, "x"], vocab_size=280),
        StreamWordPieceTokenizer.train([LEARNT, "x"], vocab_size=535),
    ]


@pytest.mark.parametrize("tokenizer", lossless(), ids=["bytes", "bpe", "wordpiece"])
@pytest.mark.parametrize("text", DOCUMENTS)
def test_bytes_of_tokens_join_to_the_text(tokenizer: StreamTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()
    assert tokenizer.decode([BOS, *ids, PAD]) == text
    assert not {PAD, BOS} & set(ids)


@pytest.mark.parametrize("line_ends", [False, True])
@pytest.mark.parametrize("tokenizer", lossless(), ids=["bytes", "bpe", "wordpiece"])
@pytest.mark.parametrize("text", DOCUMENTS[1:])
def test_bytes_and_words_add_up_over_tokens(
    tokenizer: StreamTokenizer, text: str, line_ends: bool
) -> None:
    row = torch.tensor([[BOS, *tokenizer.encode(text)]])
    units = Units.of(tokenizer, line_ends)
    counted = torch.ones_like(row[:, 1:], dtype=torch.bool)
    size, words = units.count(row[:, :-1], row[:, 1:], counted)
    assert size == len(text.encode())
    assert words == len(text.split()) + (text.count("\n") if line_ends else 0)


def test_subwords_of_running_text_are_learnt() -> None:
    for tokenizer, size in zip(lossless()[1:], (280, 535), strict=True):
        assert tokenizer.vocab_size == size
        assert len(tokenizer.encode("the theatre")) < 5


def test_words_of_running_text_include_line_ends() -> None:
    tokenizer = StreamWordTokenizer.train(["b a a\n", "a <unk> c\n"], max_words=4)
    assert tokenizer.words == ["<eos>", "<unk>", "a", "b"]
    ids = tokenizer.encode("a c b\n\n")
    assert [tokenizer.words[i - 2] for i in ids] == ["a", "<unk>", "b", "<eos>", "<eos>"]
    assert tokenizer.decode(ids) == "a <unk> b \n\n"


@pytest.mark.parametrize("tokenizer", [*lossless(), StreamWordTokenizer.train([LEARNT])])
def test_a_checkpoint_brings_the_same_tokenizer(tokenizer: StreamTokenizer) -> None:
    again = stream_tokenizer_from_state(json.loads(json.dumps(tokenizer.state())))
    assert again.token_bytes == tokenizer.token_bytes
    assert again.encode(LEARNT) == tokenizer.encode(LEARNT)


def test_code_length_is_per_unit() -> None:
    bits, perplexity = CodeLength("bits"), CodeLength("perplexity")
    for metric in (bits, perplexity):
        metric.update(torch.tensor(8.0).log() * 10, torch.tensor(10))
        metric.update(torch.tensor(2.0).log() * 10, torch.tensor(10))
    assert bits.compute().item() == pytest.approx(2)
    assert perplexity.compute().item() == pytest.approx(4)
