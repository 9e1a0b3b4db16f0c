"""How carefully a translation model decodes: in a validation, and in a test."""

import random
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from clusterformer.attention import FullAttention
from clusterformer.decoding import Search
from clusterformer.models.config import TransformerConfig
from clusterformer.tasks.translation import Translation


@torch.no_grad()
def test_a_test_searches_with_the_beam_and_a_validation_takes_the_likeliest(tmp_path: Path) -> None:
    words, draw = ["ein", "hund", "rot", "haus", "baum"], random.Random(0)
    files = {}
    for side in ("source", "target"):
        path = tmp_path / side
        path.write_text("".join(" ".join(draw.choices(words, k=4)) + "\n" for _ in range(12)))
        files |= {f"train_{side}": str(path), f"valid_{side}": str(path)}
    task = Translation(**files, vocab_size=300, beam=4, length_penalty=0.5)
    task.setup("validate")
    config = TransformerConfig(FullAttention, d_model=16, num_heads=2, num_layers=1, d_ff=16)
    network = task.build(config).eval()
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.5)
    batch, found = next(iter(task.val_dataloader())), []
    for testing, search in ((False, Search(1)), (True, Search(4, 0.5))):
        heard: list[Any] = []
        metric = SimpleNamespace(update=lambda *given, heard=heard: heard.append(given))
        task.testing = testing
        task.update(defaultdict(lambda metric=metric: metric), network(batch), batch, network)
        translations, references = heard[-1]  # of chrF, the last score
        best = task.translations(network, batch, search)
        assert translations == [hypotheses[0]["translation"] for hypotheses in best]
        assert references == [reference.plain for reference in batch.references]
        found.append(translations)
    assert found[0] != found[1]
