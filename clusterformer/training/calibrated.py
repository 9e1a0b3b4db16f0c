"""Clusters of a pretrained model, fitted to its own attention before a training begins."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from clusterformer.attention import NeuralClusteringAttention
from clusterformer.data.batches import DistributedBatchSampler
from clusterformer.huggingface.calibration import Calibrated, calibrating
from clusterformer.huggingface.dispatch import slots
from clusterformer.huggingface.recording import evaluating
from clusterformer.models.config import TransformerConfig
from clusterformer.models.pretrained import PretrainedEncoder
from clusterformer.task import Task

_log = logging.getLogger(__name__)


def calibrate_task(
    network: nn.Module, task: Task, trainer: Trainer, config: TransformerConfig
) -> list[Calibrated]:
    """Fit the clusters of a task's pretrained model to texts of its training data.

    Nothing happens unless a training begins, its model is a pretrained one with
    `NeuralClusteringAttention` that is new to it, and some of the texts are long enough to have
    clusters. Of several processes each fits to the same whole batches, and all begin with the first
    one's weights.

    Args:
        network: The task's network; changed in place.
        task: The task, with its training data.
        trainer: Trainer, about to train.
        config: Configuration of the network; it has the number of texts.

    Returns:
        What each layer sees; nothing if nothing happened.
    """
    begins = trainer.state.fn == TrainerFn.FITTING and not (task.restored or trainer.ckpt_path)
    encoders = [part for part in network.modules() if isinstance(part, PretrainedEncoder)]
    encoders = [encoder for encoder in encoders if not encoder.converted]
    found = [slot.core for encoder in encoders for slot in slots(encoder.model)]
    cores = [core for core in found if isinstance(core, NeuralClusteringAttention)]
    if not (begins and config.calibration_texts and cores) or cores[0].similarity != "cosine":
        return []
    longest = cores[0].dense_length
    batches = list(_batches(task, config.calibration_texts, longest))
    report: list[Calibrated] = []
    if batches:
        network.to(trainer.strategy.root_device)
        with (
            evaluating(network),
            calibrating(encoders[0].model, alpha=None) as report,
            torch.no_grad(),
        ):
            for batch in batches:
                network(trainer.strategy.batch_to_device(batch))
        texts = min(config.calibration_texts, sum(len(batch.mask) for batch in batches))
        _say(report, texts)
    if trainer.world_size > 1:
        states = trainer.strategy.broadcast([core.state_dict() for core in cores])
        for core, state in zip(cores, states, strict=True):
            core.load_state_dict(state)
    return report


@rank_zero_only
def _say(report: list[Calibrated], texts: int) -> None:
    seen, before, after, length = (fmean(column) for column in zip(*report, strict=True))
    _log.info(
        f"clusters fitted to {texts} training texts: in the last batch, of {length:.0f} tokens a "
        f"text, a token sees {seen:.0%} of them, and {before:.0%} -> {after:.0%} of the "
        "pretrained attention"
    )


def _batches(task: Task, texts: int, longest: int) -> Iterator[Any]:
    """Yield training batches with texts of more than `longest` tokens, until they hold enough."""
    count, loader = 0, task.train_dataloader()
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedBatchSampler):  # a task need not use ours
        sampler.take_whole()
    for batch in islice(loader, texts):
        if count >= texts:
            return
        lengths = batch.mask.sum(1)
        if int(lengths.max()) > longest:
            count += int((lengths > longest).sum())
            yield batch
