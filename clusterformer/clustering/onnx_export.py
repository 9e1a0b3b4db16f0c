"""A fitted NeuralClustering as an ONNX model: points in, clusters and memberships out.

P points   F features   C clusters
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from clusterformer.clustering.evaluation import label
from clusterformer.clustering.neighbors import PrincipalComponents
from clusterformer.clustering.network import NeuralClusters
from clusterformer.errors import missing
from clusterformer.whole_files import replacing


class Predictor(nn.Module):
    """The computation of `predict` and `predict_proba`, in single precision.

    Args:
        features: The map from data to features.
        network: Trained clusters.
        min_probability: Membership below which a point is noise, -1.
    """

    _centroids: Tensor

    def __init__(
        self, features: PrincipalComponents, network: NeuralClusters, min_probability: float
    ) -> None:
        super().__init__()
        self._features = copy.deepcopy(features).cpu().float()
        network = copy.deepcopy(network).cpu().float()
        self._project, self._min_probability = network.project, min_probability
        centroids = nn.functional.normalize(network.centroids.detach()[network.alive], dim=-1)
        self.register_buffer("_centroids", centroids.T * network.sharpness.detach().exp())

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return clusters (P,) and memberships (P, C) of points (P, columns)."""
        embedded = nn.functional.normalize(self._project(self._features(points)), dim=-1)
        logits = embedded @ self._centroids
        return label(logits, self._min_probability), logits.softmax(1)


def write_onnx(predictor: Predictor, num_columns: int, path: str | Path) -> None:
    """Write an ONNX model with the input `points` and the outputs `cluster` and `probability`.

    Raises:
        InputError: if onnx or onnxscript is missing.
    """
    if find_spec("onnxscript") is None or find_spec("onnx") is None:
        raise missing("export_onnx needs onnx", "onnx")
    with replacing(Path(path)) as partial, _quiet():
        program = torch.onnx.export(
            predictor.eval(),
            (torch.zeros(2, num_columns),),
            input_names=["points"],
            output_names=["cluster", "probability"],
            dynamic_shapes={"points": {0: torch.export.Dim("num_points")}},
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(partial)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch's exporter says about torchvision, and about its own use of pytrees."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
