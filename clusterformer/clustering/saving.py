"""Saving of the estimator: an archive of numbers and JSON, which no pickle is needed to read."""

from __future__ import annotations

import copy
import json
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from clusterformer.clustering.arrays import to_numpy
from clusterformer.clustering.evaluation import Totals
from clusterformer.clustering.neighbors import PrincipalComponents
from clusterformer.clustering.network import NeuralClusters
from clusterformer.clustering.parameters import check_fitted, check_parameters
from clusterformer.errors import InputError, reading
from clusterformer.whole_files import replacing

LABELS, MODEL = "labels.csv", "model.npz"
"""Names of files in the directories that `clusterformer cluster` writes."""

_FORMAT = "NeuralClustering 1"
_FITTED = ("cluster_centers_", "labels_")  # arrays, by their attributes
_KIND = "a model of NeuralClustering.save"

Estimator = TypeVar("Estimator", bound="SaveMixin")


class SaveMixin:
    """Methods of NeuralClustering that write and read a fitted estimator."""

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to a file, whole or not at all.

        The file is a NumPy archive without pickle, on any machine. `augment` and a state of random
        numbers are not in it: set them again before `partial_fit`, which starts with a new
        optimizer. A pickle has all of these.

        Args:
            path: File to write, such as "model.npz"; one that is there is replaced.

        Raises:
            ValueError: if a parameter was changed since the fit such that `load` would refuse it.
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        state: dict[str, Any] = vars(self)
        check_parameters(self)
        check_fitted(self, state["n_clusters_"], state["_network"].hidden)
        plain = (bool, int, float, str, type(None))
        parameters = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in self.get_params(deep=False).items()  # type: ignore[attr-defined]
        }
        described = {
            "format": _FORMAT,
            "parameters": {
                name: value if isinstance(value, plain) else None
                for name, value in parameters.items()
            },
            "steps": state["n_iter_"],
            "merge_at": state["_network"].merge_at,
            "names": list(state.get("feature_names_in_", [])) or None,
        }
        arrays = {name: to_numpy(state[name])[0] for name in _FITTED}
        arrays |= {f"_{name}": value for name, value in state["_totals"]._asdict().items()}
        for part in ("_network", "_features"):
            values = state[part].state_dict().items()
            arrays |= {f"{part}.{name}": value.cpu().numpy() for name, value in values}
        with replacing(Path(path)) as partial, partial.open("wb") as file:
            np.savez(file, json=np.array(json.dumps(described)), **arrays)

    @classmethod
    def load(cls: type[Estimator], path: str | Path, *, device: str = "cpu") -> Estimator:
        """Read an estimator that `save` wrote.

        Args:
            path: The file.
            device: Device of the computation from now on: "cpu", "cuda" or a GPU such as "cuda:1".

        Raises:
            InputError: if there is no such file, or it is damaged or something else.
            ValueError: if there is no such device.
        """
        with reading(path, _KIND):
            with Path(path).open("rb") as content:
                if not zipfile.is_zipfile(content):
                    raise InputError(f"{path}: not {_KIND}")
            with np.load(path, allow_pickle=False) as file:
                if "json" not in file.files:
                    raise InputError(f"{path}: not {_KIND}: it holds {', '.join(file.files)[:200]}")
                arrays = {name: file[name] for name in file.files}
            described = json.loads(str(arrays.pop("json")))
            if described["format"] != _FORMAT:
                raise InputError(f"{path}: format {described['format']!r}, allowed is {_FORMAT!r}")
            for name, array in arrays.items():
                if not np.isfinite(array).all():
                    raise InputError(f"{path}: NaN or infinity in {name}; the file is damaged")
            estimator = cls(**described["parameters"] | {"device": "cpu"})
            _restore(estimator, described, arrays)
        estimator.set_params(device=device)  # type: ignore[attr-defined]
        check_parameters(estimator)
        return estimator

    def __getstate__(self) -> dict[str, Any]:
        """Pickle on the CPU; partial_fit goes on as it would here."""
        state = super().__getstate__()  # type: ignore[misc]
        names = [name for name in ("_network", "_optimizer", "_features") if name in state]
        # together, so that the optimizer's parameters are those of the network
        parts = copy.deepcopy({name: state[name] for name in names})
        if parts:
            parts["_features"].cpu()
            move(parts["_network"], parts["_optimizer"], "cpu")
        return {**state, **parts}


def move(network: NeuralClusters, optimizer: torch.optim.Optimizer | None, device: str) -> None:
    """Move a network and the state of its optimizer, if it has one, to a device."""
    network.to(device)
    if optimizer is not None:
        optimizer.load_state_dict(optimizer.state_dict())  # to where its parameters are


def _restore(estimator: Any, described: dict[str, Any], arrays: dict[str, NDArray]) -> None:
    """Give an estimator its fitted parts; sizes are checked before memory is asked for."""
    check_parameters(estimator)
    clusters, columns = arrays["cluster_centers_"].shape
    components = arrays["_features.projection"].shape[1]
    units = arrays.get("_network.project.0.bias")
    check_fitted(estimator, clusters, None if units is None else len(units))
    auto = estimator.n_clusters == "auto"
    network = NeuralClusters(
        components,
        clusters,
        hidden=estimator.hidden,
        merge_at=int(described["merge_at"]),
        first=len(arrays.get("_network.centroids", ())),
        auto=auto,
        by_information=estimator.merge == "information",
        generator=torch.Generator(),
    )
    if auto:
        network.settle(clusters)
    features = PrincipalComponents(columns, components)
    for part, module in (("_network", network), ("_features", features)):
        values = {
            name.removeprefix(f"{part}."): torch.from_numpy(value)
            for name, value in arrays.items()
            if name.startswith(f"{part}.")
        }
        module.to(next(value.dtype for value in values.values() if value.is_floating_point()))
        module.load_state_dict(values)
    if int(network.alive.sum()) != clusters:
        raise ValueError(f"{int(network.alive.sum())} clusters, allowed are {clusters}")
    vars(estimator).update({name: arrays[name] for name in _FITTED})
    estimator._totals = Totals(*(arrays[f"_{name}"] for name in Totals._fields))
    estimator.n_clusters_ = clusters
    estimator._network, estimator._features, estimator._optimizer = network, features, None
    estimator.n_iter_, estimator.n_features_in_ = described["steps"], columns
    if described["names"] is not None:
        estimator.feature_names_in_ = np.array(described["names"], dtype=object)


def find_model(path: str | Path) -> Path:
    """Find the model of a file, of a directory, or of a run with one model.

    Raises:
        InputError: if there is none, or there are several.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    found = [path / MODEL] if (path / MODEL).is_file() else sorted(path.glob(f"*/{MODEL}"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(f"{path}: no {MODEL} in it; `clusterformer cluster` writes one")
    raise InputError(f"{path}: several models, name one of {', '.join(map(str, found))}")
