"""Tokenizers: what is learnt follows from the training text alone, and survives a checkpoint."""

import json

import pytest

from clusterformer.data import tokenizers as text
from clusterformer.data.batches import PAD
from clusterformer.data.tokenizers import UNK, BytePairTokenizer, WordTokenizer, restore

TEXTS = ["The cat sat on the mat .", "the dog didn't sit", "A cat's dog - naïve, isn't it?"] * 2


def train(kind, texts=TEXTS, **options):
    return {"word": WordTokenizer, "bpe": BytePairTokenizer}[kind].train(texts, **options)


both = pytest.mark.parametrize("kind", ["word", "bpe"])


@both
def test_pieces_spell_the_text(kind):
    tokenizer = train(kind)
    pieces = tokenizer.pieces(tokenizer.encode("The dog sat."))
    assert "".join(pieces).replace(" ", "") == "thedogsat."


@both
def test_state_makes_the_same_tokenizer_and_is_plain(kind):
    tokenizer = train(kind)
    again = restore(json.loads(json.dumps(tokenizer.state())))
    text = "a cat's NEW mat"
    assert again.encode(text) == tokenizer.encode(text)
    assert again.vocab_size == tokenizer.vocab_size
    assert again.state() == tokenizer.state()


@both
def test_training_twice_gives_the_same(kind):
    assert train(kind).state() == train(kind, iter(TEXTS)).state()


@both
def test_text_cannot_spell_padding(kind):
    assert PAD not in train(kind).encode("<pad> <unk>")


@both
def test_text_without_pieces_is_one_unknown(kind):
    assert train(kind).encode("") == [UNK]
    assert train(kind).encode_all(["", "cat"]) == [[UNK], train(kind).encode("cat")]


@both
def test_numbers_stay_below_the_vocabulary_size(kind):
    tokenizer = train(kind)
    assert max(max(tokens) for tokens in tokenizer.encode_all(TEXTS)) < tokenizer.vocab_size


@both
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
    assert tokenizer.pieces([0, 1, 2]) == ["<pad>", "<unk>", "a"]


def test_words_part_from_punctuation_and_contractions():
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


def test_byte_pairs_know_every_text_and_fill_the_vocabulary():
    tokenizer = train("bpe", vocab_size=300)
    assert tokenizer.vocab_size <= 300
    tokens = tokenizer.encode("日本語 ☃")
    assert UNK not in tokens
    assert len(tokens) > 4


def test_of_too_many_words_the_frequent_stay(monkeypatch):
    texts = [f"der hund {'rot ' * (i % 3)} w{i}x" for i in range(3000)]
    frequent = [("der", 3000), ("hund", 3000), ("rot", 3000)]
    assert len(text._frequent(texts)) == 3003
    monkeypatch.setattr(text, "_MOST_WORDS", 100)
    assert text._frequent(texts).most_common(3) == frequent
    assert len(text._frequent(texts)) <= 100
    pieces = json.loads(BytePairTokenizer.train(texts, vocab_size=270).state()["json"])
    assert {"Ġder", "Ġhund", "Ġrot"} <= set(pieces["model"]["vocab"])
