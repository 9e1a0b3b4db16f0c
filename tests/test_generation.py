"""What generation draws."""

import re
from functools import partial
from typing import Any

import pytest
import torch

from clusterformer.attention import NeuralClusteringAttention
from clusterformer.data.stream_tokenizers import ByteTokenizer
from clusterformer.errors import InputError
from clusterformer.generation import Sampling, TextGenerator
from clusterformer.models.config import TransformerConfig
from clusterformer.models.embeddings import PAD
from clusterformer.models.language_model import LanguageModel


def generator() -> TextGenerator:
    torch.manual_seed(0)
    attention = partial(NeuralClusteringAttention, num_clusters=4, chunk_size=4)
    config = TransformerConfig(attention, d_model=16, num_heads=2, d_ff=32, dropout=0.0)
    return TextGenerator(LanguageModel(config, vocab_size=258).eval(), ByteTokenizer())


def continued(made: TextGenerator, **options: Any) -> str:
    return "".join(made.stream("abc", Sampling(**options)))


def test_top_k_stop_and_samples_of_a_continuation() -> None:
    made = generator()
    greedy = continued(made, tokens=30, temperature=0)
    assert continued(made, tokens=30, top_k=1) == greedy
    assert continued(made, tokens=30, temperature=1e-300) == greedy
    plain = continued(made, tokens=60, seed=3)
    stop = plain[20:23]
    assert continued(made, tokens=60, seed=3, stop=stop) == plain.partition(stop)[0]
    assert continued(made, tokens=60, seed=3, stop="\0never") == plain
    texts = made.samples("abc", Sampling(tokens=60, seed=3), number=3)
    first, *others = ["".join(text) for text in texts]
    assert first == plain
    assert len({first, *others}) == 3


def test_padding_is_never_drawn() -> None:
    made, likely = generator(), 100 * torch.randn(16)
    for weight in (likely, -likely):  # the logit of one of them is above all others
        made.network.embedding.tokens.weight.data[PAD] = weight
        assert continued(made, tokens=1, temperature=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"stop": ""}, "stop must be a text of one character or more"),
        ({"temperature": -1.0}, "temperature must be at least 0, got -1.0"),
        ({"temperature": float("nan")}, "temperature must be at least 0, got nan"),
        ({"top_p": float("nan")}, "top_p must be above 0 and at most 1, got nan"),
        ({"tokens": 2.5}, "tokens must be a whole number, got 2.5"),
        ({"tokens": None}, "tokens must be a number, got None"),
        ({"top_k": 2.5}, "top_k must be a whole number, got 2.5"),
        ({"top_p": "0.9"}, "top_p must be a number, got '0.9'"),
        ({"temperature": None}, "temperature must be a number, got None"),
        ({"stop": 5}, "stop must be a text of one character or more, got 5"),
        ({"seed": "1"}, "seed must be a number, got '1'"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
    ],
)
def test_senseless_options_of_drawing_are_refused(options, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Sampling(**options)


@pytest.mark.parametrize(
    ("prompt", "number", "message"),
    [
        ("a", 0, "samples must be at least 1, got 0"),
        ("a", 1.5, "samples must be a whole number, got 1.5"),
        (5, 1, "prompt must be a text, got 5"),
        (None, 1, "prompt must be a text, got None"),
    ],
)
def test_senseless_samples_and_prompts_are_refused(prompt: Any, number: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(generator().samples(prompt, Sampling(), number=number))


def test_a_long_prompt_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, step = [], NeuralClusteringAttention.step

    def counted(*given: Any, **named: Any) -> Any:
        steps.append(given)
        return step(*given, **named)

    monkeypatch.setattr(NeuralClusteringAttention, "step", counted)
    sampling = Sampling(tokens=3, temperature=0)
    "".join(generator().stream("some words " * 2000, sampling))
    assert 0 < len(steps) <= 3 * 2  # drawn tokens by layers
