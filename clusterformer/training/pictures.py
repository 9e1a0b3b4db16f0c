"""Pictures of a finished training: learning curves, and a text coloured by cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from clusterformer.attention import Grouping
from clusterformer.models.transformer import StackOutput
from clusterformer.module import ClusterFormer
from clusterformer.plots import attention_map, learning_curves, token_clusters
from clusterformer.task import Task
from clusterformer.training.runs import Run


def draw_pictures(run: Run, model: ClusterFormer, task: Task) -> list[Path]:
    """Draw the pictures of a run into its directory.

    Args:
        run: Run with the metrics.
        model: Trained model.
        task: Task; the longest text of its first validation batch is drawn.

    Returns:
        The PNGs: learning curves, if anything was logged; the clusters of each layer that groups
        tokens; cross-attention, if the model decodes; and those of the task.
    """
    run.pictures.mkdir(exist_ok=True)
    paths = []
    if run.metrics.exists():
        paths.append(run.pictures / "curves.png")
        learning_curves(run.metrics, paths[0])
    batch = next(iter(task.val_dataloader()))
    model.eval()
    with torch.inference_mode():
        output = model(batch)
    row = int(batch.mask.sum(-1).argmax())
    mask = batch.mask[row]
    links = task.links(batch, row)
    meeting = _meeting_layer(output.encoded.groupings, row, mask, links)
    for layer, grouping in enumerate(output.encoded.groupings, start=1):
        if grouping is None or grouping.assignment.dim() != 2:
            continue
        block = None
        if grouping.blocks is not None:
            slot = grouping.blocks.slot[row] // grouping.blocks.members.shape[-1]
            block = (slot - grouping.blocks.look_back)[mask]
        paths.append(run.pictures / f"clusters-layer{layer}.png")
        token_clusters(
            task.describe(batch, row),
            grouping.assignment[row][mask],
            paths[-1],
            block=block,
            links=links,
            framed=layer == meeting,
            title=f"Clusters of layer {layer}"
            + (f" (partners met in layer {meeting})" if links and meeting < layer else ""),
        )
    assert model.network is not None
    found = task.alignment(model.network, batch, row)
    if found:
        output_tokens, weights = found
        paths.append(run.pictures / "attention.png")
        attention_map(
            weights,
            task.describe(batch, row),
            output_tokens,
            paths[-1],
            source_clusters=_clusters(output.encoded, row, mask),
            target_clusters=_clusters(output.decoded, row, batch.decoder_mask[row]),
            title="Cross-attention of the decoder; colours are clusters of the last layer",
        )
    return paths + task.draw(model.network, run.pictures)


def _meeting_layer(
    groupings: Sequence[Grouping | None],
    row: int,
    mask: Tensor,
    links: Sequence[tuple[int, int]],
) -> int:
    """Find the layer, from 1, that puts most links into one cluster: later ones need not again."""

    def together(grouping: Grouping | None) -> int:
        if grouping is None or grouping.assignment.dim() != 2:
            return -1
        cluster = grouping.assignment[row][mask].tolist()
        return sum(cluster[i] == cluster[j] for i, j in links)

    found = [together(grouping) for grouping in groupings]
    return found.index(max(found)) + 1 if found else 0


def _clusters(encoded: StackOutput | None, row: int, mask: Tensor) -> Tensor | None:
    """Return the cluster of each real token of a row in the last layer; None if it has none."""
    grouping = encoded.groupings[-1] if encoded else None
    if grouping is None or grouping.assignment.dim() != 2:
        return None
    return grouping.assignment[row][mask]
