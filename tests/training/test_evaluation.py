"""Measures over a whole validation set."""

import math
from functools import partial

import pytest
import torch
from default_dtype import default_dtype
from torch import nn
from torchmetrics import MetricCollection
from toy_task import Examples, Net, Toy, ToyBatch
from waits import Waits

from clusterformer.attention import ClusteredAttention, FullAttention, NeuralClusteringAttention
from clusterformer.models.config import TransformerConfig
from clusterformer.task import Output
from clusterformer.training.evaluation import Evaluation, WeightedMean


def test_a_mean_of_means_leaves_out_what_is_not_there() -> None:
    mean, nothing = WeightedMean(), torch.tensor(float("nan"))
    for value, number in ((torch.tensor(1.0), 3), (nothing, 0), (torch.tensor(5.0), 1)):
        mean.update(value, torch.tensor(number))
    assert mean.compute() == 2
    empty = WeightedMean()
    empty.update(nothing, torch.tensor(0))
    assert empty.compute().isnan()


@torch.no_grad()
def test_a_batch_without_a_loss_is_not_left_out_of_the_mean() -> None:
    network = Net(TransformerConfig(FullAttention, d_model=8, num_heads=2, num_layers=1)).eval()
    task = Unmeasured()
    task.setup("fit")
    evaluation = Evaluation(task, torch.device("cpu"))
    for number, batch in enumerate(task.val_dataloader()):
        output = network(batch)
        output = output._replace(logits=output.logits * (torch.nan if number == 1 else 1.0))
        evaluation.add(network, output, batch)
    assert evaluation.compute()["loss"].isnan()


@torch.no_grad()
def test_outputs_that_are_nan_have_no_accuracy() -> None:
    config = TransformerConfig(FullAttention, d_model=8, num_heads=2, num_layers=1)
    network, task = Net(config).eval(), Measured()
    task.setup("fit")
    found = []
    for spoilt in (1.0, torch.nan):
        evaluation = Evaluation(task, torch.device("cpu"))
        for number, batch in enumerate(task.val_dataloader()):
            output = network(batch)
            output = output._replace(logits=output.logits * (spoilt if number == 1 else 1.0))
            evaluation.add(network, output, batch)
        found.append(float(evaluation.compute()["accuracy"]))
    assert 0 <= found[0] <= 1
    assert math.isnan(found[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_mean_over_many_batches_is_right_in_half_precision(dtype: torch.dtype) -> None:
    with default_dtype(dtype):  # means are made in the first step of a validation
        mean = WeightedMean()
        for value in 100 * [2.0] + 100 * [1.0]:
            mean.update(torch.tensor(value), torch.tensor(1000))
        assert mean.compute() == 1.5


class Measured(Toy):
    def update(
        self, metrics: MetricCollection, output: Output, batch: ToyBatch, network: nn.Module
    ) -> None:
        metrics.update(output.logits.argmax(-1), batch.target)


class Unmeasured(Toy):
    def update(self, *_: object) -> None:
        """Leave out its accuracy, at which a GPU waits, and which asks for the trainer."""


@torch.no_grad()
def test_no_gpu_would_wait_for_a_batch_to_be_added() -> None:
    attention = partial(NeuralClusteringAttention, num_clusters=3)
    network = Net(TransformerConfig(attention, d_model=8, num_heads=2, num_layers=2, d_ff=8)).eval()
    task = Unmeasured()
    task.setup("fit")
    batch = next(iter(task.val_dataloader()))
    evaluation = Evaluation(task, torch.device("cpu"))
    evaluation.add(network, network(batch), batch)  # makes the metrics
    with Waits() as waits:
        evaluation.add(network, network(batch), batch)
    assert not waits.found


@torch.no_grad()
def test_measures_do_not_depend_on_how_texts_fall_into_batches() -> None:
    """Also where some of them are so short that they have full attention."""
    attention = partial(NeuralClusteringAttention, num_clusters=4, block_size=2, dense_length=5)
    network = Net(TransformerConfig(attention, d_model=8, num_heads=2, num_layers=2, d_ff=8)).eval()
    task, texts, found = Measured(), Examples(20, 1), []
    for size in (20, 13, 1):
        evaluation = Evaluation(task, torch.device("cpu"))
        for first in range(0, 20, size):
            batch = texts[list(range(first, min(first + size, 20)))]
            evaluation.add(network, network(batch), batch)
        found.append(evaluation.compute())
    assert {"loss", "accuracy", "keys_seen", "layer2/entropy", "layer1/purity"} <= set(found[0])
    for measures in found[1:]:
        torch.testing.assert_close(measures, found[0])


@torch.no_grad()
def test_clusters_without_blocks_have_no_purity() -> None:
    attention = partial(ClusteredAttention, num_clusters=3)
    network = Net(TransformerConfig(attention, d_model=8, num_heads=2, num_layers=1, d_ff=8)).eval()
    task = Unmeasured()
    task.setup("fit")
    batch = next(iter(task.val_dataloader()))
    evaluation = Evaluation(task, torch.device("cpu"))
    evaluation.add(network, network(batch), batch)
    measures = evaluation.compute()
    assert "layer1/entropy" in measures
    assert "layer1/purity" not in measures
