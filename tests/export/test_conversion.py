"""What a conversion of a pretrained model gives each layer."""

import pytest

from clusterformer.export.conversion import attach
from clusterformer.huggingface.dispatch import slots

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("first", ["sliding_attention", "full_attention"])
def test_clusters_begin_with_global_tokens_and_local_heads_in_whatever_layer(first: str) -> None:
    config = transformers.ModernBertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=16, local_attention=8, pad_token_id=0,
        layer_types=[first, "full_attention", "sliding_attention"],
    )  # fmt: skip
    model = transformers.ModernBertModel(config)
    attach(model, "NeuralClusteringAttention", {"num_clusters": 3})
    options = model.config.clusterformer["options"]
    assert (options["global_tokens"], options["local_heads"]) == (1, 2)
    assert slots(model)[1].core.global_tokens == 1
    attach(model, "NeuralClusteringAttention", {"global_tokens": 0})
    assert slots(model)[1].core.global_tokens == 0
