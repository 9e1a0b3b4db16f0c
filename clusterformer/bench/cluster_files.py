"""Files of a clustering: the cluster of each point, memberships, and the model.

P points   C clusters   F features
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterformer.clustering.saving import LABELS, MODEL
from clusterformer.whole_files import replacing

MEMBERSHIPS, CENTERS = "memberships.npy", "centers.npy"

_ROWS = 2**16  # points labelled at a time


def write_labels(
    folder: Path, clustering: Any, points: NDArray, ids: Sequence[str] | None = None
) -> list[Path]:
    """Write the cluster of each point, and memberships where the clustering has them.

    labels.csv has the columns id, cluster and, with memberships, probability: that of the cluster.
    Each file is written whole or not at all.

    Args:
        folder: Directory; made if it is missing.
        clustering: Fitted estimator.
        points: (P, F).
        ids: Name of each point; None for numbers from 0.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    soft = hasattr(clustering, "predict_proba")
    paths = [folder / LABELS, folder / MEMBERSHIPS] if soft else [folder / LABELS]
    with (
        replacing(paths[0]) as partial,
        replacing(paths[1]) if soft else nullcontext() as target,
        partial.open("w", encoding="utf-8", newline="") as file,
        target.open("wb") if target else nullcontext() as array,
    ):
        writer = csv.writer(file)
        writer.writerow(["id", "cluster", "probability"] if soft else ["id", "cluster"])
        for start in range(0, len(points), _ROWS):
            rows = points[start : start + _ROWS]
            names = ids[start : start + _ROWS] if ids else range(start, start + len(rows))
            if array is None:
                writer.writerows(zip(names, clustering.predict(rows).tolist(), strict=True))
                continue
            found = clustering.predict_proba(rows)
            if start == 0:
                shape = (len(points), found.shape[1])
                layout = {"descr": found.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(array, layout)
            # not by a memory map: on a full disk the system would kill the process
            array.write(found.tobytes())
            largest = found.max(1)
            # -1: noise, of a model of Python with min_probability
            enough = largest >= getattr(clustering, "min_probability", 0.0)
            clusters = np.where(enough, found.argmax(1), -1).tolist()
            probability = (f"{value:.6f}" for value in largest.tolist())
            writer.writerows(zip(names, clusters, probability, strict=True))
    return paths


def write_model(folder: Path, clustering: Any, columns: Sequence[str] | None = None) -> Path:
    """Write a NeuralClustering as `save` does, or the centers (C, F) of another clustering.

    Args:
        folder: Directory.
        clustering: Fitted estimator.
        columns: Names of the features, which the model then keeps.
    """
    if not hasattr(clustering, "save"):
        with replacing(folder / CENTERS) as partial, partial.open("wb") as file:
            np.save(file, clustering.cluster_centers_)
        return folder / CENTERS
    if columns is not None:
        clustering.feature_names_in_ = np.array(columns, dtype=object)
    clustering.save(folder / MODEL)
    return folder / MODEL
