"""Running text to tokens and back: nothing is lost, bytes and words add up."""

import pytest
import torch

from clusterformer.data.spelling import (
    TEXT,
    BytePairSpeller,
    ByteSpeller,
    Speller,
    WordSpeller,
    restore,
)
from clusterformer.tasks.metrics import CodeLength, Units

TEXTS = [
    "",
    "one",
    " = Robert <unk> = \n \n Robert is an actor . \n",
    "naïve – 東京 🌊\tand\r\n\n\n<text><pad> </s> x",
    "no end of line\n  indented  twice",
]
LEARNT = "the theatre and the actor – naïve 東京\n" * 20


def spellers() -> list[Speller]:
    return [ByteSpeller(), BytePairSpeller.train([LEARNT, "x"], vocab_size=280)]


@pytest.mark.parametrize("speller", spellers(), ids=["bytes", "bpe"])
@pytest.mark.parametrize("text", TEXTS)
def test_spellings_put_together_are_the_text(speller: Speller, text: str) -> None:
    tokens = speller.encode(text).tolist()
    assert b"".join(speller.spellings[token] for token in tokens) == text.encode()
    assert not {0, TEXT} & set(tokens)


@pytest.mark.parametrize("line_ends", [False, True])
@pytest.mark.parametrize("speller", spellers(), ids=["bytes", "bpe"])
@pytest.mark.parametrize("text", TEXTS[1:])
def test_bytes_and_words_add_up_over_tokens(speller: Speller, text: str, line_ends: bool) -> None:
    row = torch.tensor([[TEXT, *speller.encode(text).tolist()]])
    units = Units.of(speller, line_ends)
    counted = torch.ones_like(row[:, 1:], dtype=torch.bool)
    size, words = units.count(row[:, :-1], row[:, 1:], counted)
    assert size == len(text.encode())
    assert words == len(text.split()) + (text.count("\n") if line_ends else 0)


def test_byte_pairs_are_learnt() -> None:
    _, speller = spellers()
    assert speller.vocab_size == 280
    assert len(speller.encode("the theatre")) < 5


def test_words_are_counted_with_line_ends() -> None:
    speller = WordSpeller.train(["b a a\n", "a <unk> c\n"], max_words=4)
    assert speller.words == ["<eos>", "<unk>", "a", "b"]
    tokens = speller.encode("a c b\n\n").tolist()
    assert [speller.words[token - 2] for token in tokens] == ["a", "<unk>", "b", "<eos>", "<eos>"]
    assert b"".join(speller.spellings[token] for token in tokens) == b"a <unk> b \n\n"


@pytest.mark.parametrize("speller", [*spellers(), WordSpeller.train([LEARNT])])
def test_a_checkpoint_brings_the_same_speller(speller: Speller) -> None:
    again = restore(speller.state())
    assert again.spellings == speller.spellings
    assert again.encode(LEARNT).tolist() == speller.encode(LEARNT).tolist()


def test_code_length_is_per_unit() -> None:
    bits, perplexity = CodeLength("bits"), CodeLength("perplexity")
    for metric in (bits, perplexity):
        metric.update(torch.tensor(8.0).log() * 10, torch.tensor(10))
        metric.update(torch.tensor(2.0).log() * 10, torch.tensor(10))
    assert bits.compute().item() == pytest.approx(2)
    assert perplexity.compute().item() == pytest.approx(4)
