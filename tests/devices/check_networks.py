"""Networks and the clustering of points on a device other than the CPU; see test_devices.py."""

from functools import partial

import numpy as np
import pytest
import torch
from pretended_tensor import DEVICE

from clusterformer.attention import (
    AttentionCore,
    FullAttention,
    NeuralClusteringAttention,
)
from clusterformer.clustering import NeuralClustering, estimator, parameters
from clusterformer.data.stream_tokenizers import ByteTokenizer
from clusterformer.generation import Sampling, TextGenerator
from clusterformer.models.config import TransformerConfig
from clusterformer.models.language_model import LanguageModel

NEURAL = partial(
    NeuralClusteringAttention, num_clusters=4, chunk_size=4, local_heads=1, local_window=4
)


@pytest.mark.parametrize("attention", [FullAttention, NEURAL])
@pytest.mark.parametrize("prompt", ["", "a longer prompt than the chunks of the clusters are"])
def test_text_is_generated(attention: type[AttentionCore], prompt: str) -> None:
    config = TransformerConfig(attention, d_model=16, num_heads=2, d_ff=32, dropout=0.0)
    network = LanguageModel(config, vocab_size=258).eval().to(DEVICE)
    made = TextGenerator(network, ByteTokenizer())
    for options in ({"temperature": 0.0}, {"seed": 3, "top_k": 20, "top_p": 0.9}):
        one, other = made.samples(prompt, Sampling(tokens=8, **options), number=2)
        assert ("".join(one) == "".join(other)) is ("temperature" in options)


@pytest.mark.parametrize("tensors", [False, True])
def test_points_are_clustered(tensors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (estimator, parameters):
        monkeypatch.setattr(module, "_check_device", lambda device: None, raising=False)
    draw = np.random.default_rng(0)
    points = np.concatenate([draw.normal(5 * i, size=(40, 6)) for i in range(4)]).astype("float32")
    given = torch.from_numpy(points).to(DEVICE) if tensors else points
    made = NeuralClustering(4, device=str(DEVICE), random_state=0, max_iter=2).fit(given)
    for found in (made.predict(given), made.predict_proba(given), made.transform(given)):
        assert len(found) == len(points)
        assert not tensors or found.device == DEVICE
    assert made.fit(points, sample_weight=np.ones(len(points))).score(points) is not None
