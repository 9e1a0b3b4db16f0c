"""How much a layer launches on a GPU: at a few thousand tokens that is most of its time."""

import pytest
import torch
from contract_layers import mask_of
from launches import Launches

from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention
from clusterformer.kernels.dispatch import VARIABLE

pytest.importorskip("triton")

ENDS = {"global_tokens": 1, "local_heads": 1, "local_window": 4}


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 25), ({"causal": True, "chunk_size": 4}, 30), (ENDS, 93)],
    ids=["default", "strictly causal", "ends and local heads"],
)
def test_operations_of_a_forward_pass(options: dict, most: int, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "triton")
    core = NeuralClusteringAttention(16, 2, num_clusters=3, block_size=4, dense_length=0, **options)
    layer = MultiHeadAttention(core)
    x, mask = torch.randn(2, 30, 16), mask_of([30, 20], 30)
    with Launches() as launches:
        layer(x, mask)
    assert len(launches.names) <= most, sorted(launches.names)
