"""What a conversion of a pretrained model gives each layer."""

import stat
from pathlib import Path

import pytest
import torch

from clusterformer.export.conversion import attach
from clusterformer.export.folder import whole_model
from clusterformer.huggingface.dispatch import slots

transformers = pytest.importorskip("transformers")


def test_whoever_reads_the_configuration_of_a_folder_reads_its_weights(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with whole_model(tmp_path / "made") as draft:
        (draft / "config.json").write_text("{}", encoding="utf-8")
        (draft / "config.json").chmod(0o644)
        save_file({"weight": torch.zeros(1)}, draft / "model.safetensors")
    assert stat.S_IMODE((tmp_path / "made" / "model.safetensors").stat().st_mode) == 0o644


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
