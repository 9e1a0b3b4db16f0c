"""Measures over a whole validation or test set, for any number of processes."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from clusterformer.clustering.grouping_statistics import grouping_statistics
from clusterformer.clustering.processes import is_distributed
from clusterformer.findings import Findings, Report
from clusterformer.models.sharding import whole
from clusterformer.stack_groupings import stacks
from clusterformer.task import Output, Task


class WeightedMean(Metric):
    """Mean of means, by the number of things of each; one over nothing, NaN or not, does not count.

    torchmetrics' MeanMetric leaves out every NaN, also that of a loss, and a GPU waits for it.
    Sums are in float32 under `trainer.precision` bf16-true too, in which they would stop to grow.
    """

    total: Tensor
    number: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "number"):
            zero = torch.zeros((), dtype=torch.float32)
            self.add_state(name, zero, dist_reduce_fx="sum")

    def update(self, mean: Tensor, number: Tensor) -> None:
        """Add a mean over so many things, both of no dimension."""
        self.total += (mean.float() * number).masked_fill(number == 0, 0.0)
        self.number += number

    def compute(self) -> Tensor:
        """Return the mean; NaN over nothing."""
        return self.total / self.number


class Evaluation:
    """The task's metrics, its loss and the state of the clusters over one pass of the data.

    Args:
        task: Task with the metrics.
        device: Device of the batches.
        report: Collector of findings beyond measures.
    """

    def __init__(self, task: Task, device: torch.device, report: Report | None = None) -> None:
        self._task = task
        self._metrics = task.metrics().to(device)
        self._report = report.to(device) if report else None
        self._means: dict[str, WeightedMean] = defaultdict(lambda: WeightedMean().to(device))
        self._spoilt = WeightedMean().to(device)  # share of targets in batches whose loss is NaN

    def add(self, network: nn.Module, output: Output, batch: Any) -> None:
        """Add one batch of this process."""
        with whole(network) if self._task.decodes else nullcontext():
            self._task.update(self._metrics, output, batch, network)
        if self._report:
            self._report.update(output, batch)
        total, count = self._task.loss(output, batch, 0.0)
        self._means["loss"].update(total / count.clamp(min=1), count)
        self._spoilt.update(total.isnan(), count)
        for name, (mean, number) in self._task.means(output, batch).items():
            self._means[name].update(mean, number)
        for stack in stacks(output, batch):
            tokens = stack.mask.sum()
            for layer, shares in enumerate(stack.keys_seen(), start=1):
                if shares is not None:
                    mean = shares.sum() / tokens.clamp(min=1)
                    self._means["keys_seen"].update(mean, tokens)
                    self._means[f"{stack.name}layer{layer}/keys_seen"].update(mean, tokens)
            for layer, grouping in enumerate(stack.groupings, start=1):
                if grouping is not None:
                    mask = grouping.clustered(stack.mask)
                    sequences = mask.any(-1).sum()
                    found = grouping_statistics(
                        grouping.assignment, grouping.num_clusters, mask, grouping.blocks
                    )
                    for name, value in found._asdict().items():
                        if value is None:
                            continue
                        self._means[f"{stack.name}layer{layer}/{name}"].update(value, sequences)

    def compute(self) -> dict[str, Tensor]:
        """Compute every measure, by its name, over all processes; all are NaN if a loss is.

        The largest of logits that are NaN is the first, so an accuracy would seem to be one. A loss
        over nothing, as of transcripts that are all too long, is NaN too, but spoils no measure.
        """
        means = {name: self._means[name].compute() for name in self._names()}
        measures = self._metrics.compute()
        if self._spoilt.compute() > 0:
            measures = dict.fromkeys(measures, means["loss"])
        return {**measures, **means}

    def _names(self) -> list[str]:
        """Names of the means that any process has, in one order: all of them reduce each together.

        A process whose texts are all too short to be clustered has none of the clusters' means.
        """
        if not is_distributed():
            return list(self._means)
        found: list[list[str]] = [[] for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather_object(found, list(self._means))
        names = sorted({name for own in found for name in own})
        nothing = torch.tensor(0.0)
        for name in names:
            self._means[name].update(nothing, nothing)
        return names

    def findings(self) -> Findings | None:
        """Findings of the report over all processes, all of which call this."""
        return self._report.compute() if self._report else None
