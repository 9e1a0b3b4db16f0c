"""The model of a run of `clusterformer cluster`, as a checkpoint of the task Clustering."""

from __future__ import annotations

import shlex
from pathlib import Path

from torch import Tensor

from clusterformer.clustering import NeuralClustering
from clusterformer.clustering.saving import LABELS, MODEL, find_model
from clusterformer.data.text_vectors import FILE as VECTORS
from clusterformer.errors import InputError
from clusterformer.training.saved import Saved


def is_clustering(path: Path) -> bool:
    """Tell whether a path is a run of `clusterformer cluster`, a directory in it, or a model."""
    if not path.is_dir():
        return path.suffix == Path(MODEL).suffix
    return (path / LABELS).is_file() or any(path.glob(f"*/{LABELS}"))


def predicting_command(path: Path) -> str:
    """Return the command that labels texts or points with a run of `clusterformer cluster`."""
    folder = path if path.is_dir() else path.parent
    if (folder / VECTORS).is_file():
        return f"clusterformer cluster --text FILE --predict {shlex.quote(str(folder))}"
    return f"clusterformer cluster --data FILE --predict {shlex.quote(str(path))}"


def open_clustering(path: Path) -> Saved:
    """Read the model that `clusterformer cluster` wrote.

    Raises:
        InputError: if there is none, there are several, it is damaged, or it is of texts.
    """
    path = find_model(path)
    if (path.parent / VECTORS).is_file():
        raise InputError(
            f"{path}: clusters of texts, label others with `{predicting_command(path)}`"
        )
    model = NeuralClustering.load(path)
    network, features = model.network_, model.features_
    data = {
        "name": str(path),
        "n_clusters": int(network.alive.sum()),
        "hidden": model.hidden,
        "n_components": features.num_features,
        "merge_at": 0,
        "min_probability": model.min_probability,
    }
    return Saved(
        path=path,
        config={
            "seed_everything": 0,
            "model": {"attention": {"class_path": "clusterformer.attention.full.FullAttention"}},
            "data": {"class_path": "clusterformer.tasks.clustering.Clustering", "init_args": data},
        },
        kind="Clustering",
        state={"features": _single(features.state_dict())},
        weights={
            f"network.clusters.{name}": value
            for name, value in _single(network.living_state()).items()
        },
        mode="min",
    )


def _single(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Bring numbers to the precision of networks."""
    return {
        name: value.float() if value.is_floating_point() else value
        for name, value in values.items()
    }
