"""Whole networks under torch.compile: one graph for all lengths, with values and gradients."""

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from clusterformer.attention import NeuralClusteringAttention
from clusterformer.models.classifier import PairClassifier, TextClassifier
from clusterformer.models.config import TransformerConfig
from clusterformer.models.language_model import LanguageModel
from clusterformer.models.masked_language_model import MaskedLanguageModel
from clusterformer.models.seq2seq import Seq2Seq

SIZE = 20


class Batch(NamedTuple):
    """What any network of text reads."""

    tokens: Tensor
    mask: Tensor
    second: Tensor
    asked: Tensor
    decoder_input: Tensor
    decoder_mask: Tensor


def batch_of(lengths: list[int]) -> Batch:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens, read = (torch.randint(1, SIZE, mask.shape) for _ in range(2))
    return Batch(
        tokens.masked_fill(~mask, 0),
        mask,
        second=mask & (torch.arange(max(lengths)) > 9),
        asked=torch.tensor([[0, 3]] * len(lengths)),
        decoder_input=read[:, :-1],
        decoder_mask=torch.ones_like(read[:, :-1], dtype=torch.bool),
    )


def neural(d_model: int, num_heads: int, **options) -> NeuralClusteringAttention:
    return NeuralClusteringAttention(d_model, num_heads, num_clusters=4, **options)


CONFIG = TransformerConfig(neural, d_model=16, num_heads=2, d_ff=16, dropout=0.0)
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "classifier": lambda: TextClassifier(CONFIG, vocab_size=SIZE, num_labels=3),
    "pairs": lambda: PairClassifier(CONFIG, vocab_size=SIZE, num_labels=3, joint=True),
    "language model": lambda: LanguageModel(CONFIG, vocab_size=SIZE),
    "masked": lambda: MaskedLanguageModel(CONFIG, vocab_size=SIZE, next_sentence=True),
    "seq2seq": lambda: Seq2Seq(CONFIG, source_size=SIZE, target_size=SIZE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_one_graph_for_all_lengths(name: str) -> None:
    torch._dynamo.reset()
    network = NETWORKS[name]()
    compiled = deepcopy(network)
    compiled.compile(backend="eager", fullgraph=True)
    assert compiled.state_dict().keys() == network.state_dict().keys()
    for lengths in ([24, 24], [31, 40], [53, 20]):
        batch, found = batch_of(lengths), []
        for form in (compiled, network):
            form.zero_grad()
            with torch._dynamo.config.patch(error_on_recompile=lengths == [53, 20]):
                logits = form(batch).logits
            logits.sin().sum().backward()
            found.append((logits, [parameter.grad for parameter in form.parameters()]))
        torch.testing.assert_close(*found)
