"""Text forms: Moses tokens and case, there and back."""

import random

import pytest
import sacremoses

from clusterformer.data.text_form import UNUSUAL, TextForm
from clusterformer.errors import InputError

TEXTS = [
    "Das ist „gut“, z.B. 3,5 % & mehr!",
    "Dr. Meier sagt: Es geht nicht ...",
    "He isn't here (yet), is he?",
    "Well-known U.S. firms paid $5.20 <b>.",
]


@pytest.mark.parametrize("language", ["de", "en"])
@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_the_library(language, text):
    normal = sacremoses.MosesPunctNormalizer(language).normalize(text)
    expected = sacremoses.MosesTokenizer(language).tokenize(normal, escape=False)
    assert TextForm(language, moses=True).preprocess(text).split() == expected


@pytest.mark.parametrize("language", ["de", "en", "fr"])
def test_what_the_normaliser_is_not_asked_for_it_would_leave_as_it_is(language):
    rng = random.Random(language)
    normaliser = sacremoses.MosesPunctNormalizer(language)
    usual, marks = "  .,:;!?'-/&a0", '%"()`´«»„“”‘’‚–—…\u00a0\rnºC'
    skipped = 0
    for _ in range(3000):
        text = "".join(rng.choices(usual + marks, [10] * len(usual) + [1] * len(marks), k=8))
        if not UNUSUAL.search(text):
            skipped += 1
            assert normaliser.normalize(text) == text.strip()
    assert skipped > 300


def test_tokens_become_text_again():
    form = TextForm("en", moses=True)
    text = "He isn't here (yet), is he?"
    assert form.preprocess(text) == "He isn 't here ( yet ) , is he ?"
    assert form.detokenise(form.preprocess(text)) == text


def test_hyphens_may_be_tokens_and_become_text_again():
    form = TextForm("en", moses=True, split_hyphens=True)
    assert form.preprocess("A well-known firm.") == "A well @-@ known firm ."
    assert form.detokenise("A well @-@ known firm .") == "A well-known firm."
    with pytest.raises(InputError, match="split_hyphens is for Moses tokens"):
        TextForm("en", split_hyphens=True)


def test_without_moses_text_stays_as_it_is():
    form = TextForm()
    assert form.preprocess(" Ein  Hund, oder? ") == "Ein  Hund, oder?"
    assert form.detokenise("Ein  Hund") == "Ein  Hund"
    assert TextForm(lowercase=True).preprocess("Ein Hund") == "ein hund"


def test_an_unknown_language_is_reported():
    with pytest.raises(InputError, match=r"no language 'xx', only as, bn"):
        TextForm("xx", moses=True)
    assert TextForm("xx").preprocess("a") == "a"
