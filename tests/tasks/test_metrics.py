"""Corpus scores: exactly sacrebleu's, however the sentences are shared out."""

import math
import random

import pytest
import sacrebleu
import torch
from sklearn.metrics import matthews_corrcoef

from clusterformer.task import IGNORE
from clusterformer.tasks.metrics import (
    CodeLength,
    CorpusScore,
    MatthewsCorrelation,
    PearsonCorrelation,
)

RNG = random.Random(0)
WORDS = ["a", "well-known", "Man", "saw", "the", "dog", ",", "and", "(", "again", ")", "left", "."]
REFERENCES = [" ".join(RNG.choices(WORDS, k=RNG.randint(4, 12))) for _ in range(40)]
HYPOTHESES = [
    " ".join(word for word in line.split() if RNG.random() < 0.9) or "a" for line in REFERENCES
]


def score(name: str, shares: int = 1, **options) -> float:
    parts = [CorpusScore(name, **options) for _ in range(shares)]
    for number, part in enumerate(parts):
        part.update(HYPOTHESES[number::shares], REFERENCES[number::shares])
    whole = CorpusScore(name, **options)
    whole.statistics = sum(part.statistics for part in parts)
    return float(whole.compute())


@pytest.mark.parametrize(
    ("given", "predicted"),
    [
        ("0101101", "0111001"),
        ("0101101", "1111111"),
        ("0101101", "0000000"),
        ("1111", "1011"),
        ("11", "11"),
    ],
)
def test_matthews_correlation_is_that_of_scikit_learn(given: str, predicted: str) -> None:
    labels, found = ([int(digit) for digit in digits] for digits in (given, predicted))
    metric = MatthewsCorrelation()
    metric.update(torch.tensor([*found, 1]), torch.tensor([*labels, IGNORE]))
    assert float(metric.compute()) == pytest.approx(matthews_corrcoef(labels, found))


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [([0.3, 0.3, 0.3], 0.0), ([0.0, 1.0, 2.0], 1.0), ([0.3, math.nan, 0.3], math.nan)],
)
def test_predictions_that_are_all_the_same_correlate_with_nothing(
    predicted: list[float], expected: float, recwarn: pytest.WarningsRecorder
) -> None:
    metric = PearsonCorrelation()
    metric.update(torch.tensor(predicted), torch.tensor([1.0, 2.0, 3.0]))
    assert float(metric.compute()) == pytest.approx(expected, nan_ok=True)
    assert not recwarn.list


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("shares", [1, 3])
def test_scores_are_those_of_sacrebleu(shares, lowercase):
    data = HYPOTHESES, [REFERENCES]
    expected = {
        "tokenised_bleu": sacrebleu.corpus_bleu(*data, tokenize="none", lowercase=lowercase),
        "sacrebleu": sacrebleu.corpus_bleu(*data, lowercase=lowercase),
        "chrf": sacrebleu.metrics.CHRF(lowercase=lowercase).corpus_score(*data),
    }
    for name, found in expected.items():
        assert score(name, shares, lowercase=lowercase) == pytest.approx(found.score)


def test_compounds_count_by_their_parts():
    split = [
        [line.replace("well-known", "well ##AT##-##AT## known") for line in lines]
        for lines in (HYPOTHESES, REFERENCES)
    ]
    expected = sacrebleu.corpus_bleu(split[0], [split[1]], tokenize="none")
    assert score("compound_bleu") == pytest.approx(expected.score)
    assert score("compound_bleu") != pytest.approx(score("tokenised_bleu"))


def test_an_empty_share_counts_nothing():
    metric = CorpusScore("sacrebleu")
    metric.update([], [])
    assert not metric.statistics.any()
    assert float(metric.compute()) == 0


def test_signatures_tell_the_scores_apart():
    signatures = {name: CorpusScore(name).signature for name in ("tokenised_bleu", "sacrebleu")}
    assert "tok:none" in signatures["tokenised_bleu"]
    assert "tok:13a" in signatures["sacrebleu"]
    assert "case:lc" in CorpusScore("sacrebleu", lowercase=True).signature


def test_perplexity_weighs_tokens_not_batches():
    metric = CodeLength("perplexity")
    metric.update(torch.tensor(30 * 1.0), torch.tensor(30))
    metric.update(torch.tensor(10 * 4.0), torch.tensor(10))
    assert float(metric.compute()) == pytest.approx(2.718281828 ** ((30 + 40) / 40))
