"""Trained models evaluated with other mechanisms than their own (Vyas et al., 2020, table 1)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention import AttentionCore, Grouping, MultiHeadAttention
from clusterformer.bench.report import Row
from clusterformer.bench.subjects import causal_forms, make_mechanism
from clusterformer.errors import InputError
from clusterformer.models.transformer import EncoderLayer
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.training.evaluation import Evaluation

OWN = "own"
"""Name of the mechanism that a model was trained with."""


class DoesNotFitError(InputError):
    """A mechanism that cannot take the place of another one."""


class SharedKeys(AttentionCore):
    """A mechanism whose keys are the queries at unit length, as in a model of shared queries.

    Args:
        inner: The mechanism, which has queries and keys of its own.
    """

    shared_qk = True

    def __init__(self, inner: AttentionCore) -> None:
        super().__init__(inner.d_model, inner.num_heads)
        self.inner = inner

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        hidden: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        previous: Grouping | None = None,
    ) -> tuple[Tensor, Grouping | None]:
        return self.inner(
            q,
            F.normalize(q.float(), dim=-1).to(q.dtype),
            v,
            hidden=hidden,
            query_mask=query_mask,
            key_mask=key_mask,
            previous=previous,
        )

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor | None:
        return self.inner.keys_seen(grouping, mask)


def exchange(network: nn.Module, name: str) -> list[tuple[MultiHeadAttention, AttentionCore]]:
    """Give every layer of self-attention another mechanism.

    A model of shared queries and keys hands its keys, queries at unit length, to a mechanism that
    has keys of its own.

    Args:
        network: Network of a task.
        name: Class of a mechanism without weights, or a name of the paper, such as clustered-100.

    Returns:
        Each layer with the mechanism that it had.

    Raises:
        DoesNotFitError: if it has weights, shares queries and keys where the model has keys of its
            own, or has no causal form where the model is causal.
        InputError: if there is no such mechanism.
    """
    before = [(layer, layer.core) for layer in _layers(network)]
    others = [_other(name, core) for _, core in before]
    for (layer, _), new in zip(before, others, strict=True):
        layer.core = new.to(layer.q_proj.weight.device).eval()
    return before


def _layers(network: nn.Module) -> list[MultiHeadAttention]:
    """List the layers by which the network attends to its own tokens."""
    return [part.attention for part in network.modules() if isinstance(part, EncoderLayer)]


def _other(name: str, core: AttentionCore) -> AttentionCore:
    """Make another mechanism in the place of `core`."""
    if core.causal not in causal_forms(name):
        raise DoesNotFitError(f"{name} has no form with causal={core.causal!r}, as the model has")
    new = make_mechanism(name, core.d_model, core.num_heads, core.causal)
    if any(True for _ in new.parameters()):
        raise DoesNotFitError(f"{name} has weights of its own, which the model lacks")
    if new.shared_qk and not core.shared_qk:
        raise DoesNotFitError(f"{name} shares queries and keys, and the model has keys of its own")
    return SharedKeys(new) if core.shared_qk and not new.shared_qk else new


def measure(
    module: ClusterFormer,
    task: Task,
    names: Sequence[str],
    stage: Literal["validate", "test"] = "validate",
) -> Iterator[Row]:
    """Evaluate a model with its own mechanism, then with each of the others.

    Args:
        module: Trained model, on its device and in evaluation mode.
        task: Its task.
        names: Mechanisms, as for `exchange`; one that does not fit the model is left out.
        stage: Part of the data.

    Yields:
        For each mechanism the measures, and the seconds that the forward passes took.

    Raises:
        InputError: if there is no such mechanism, or no layer of ours, before any is measured.
    """
    network, device = module.network, module.device
    assert network is not None
    if not _layers(network):
        raise InputError(f"{type(network).__name__} has no layers of ours to exchange")
    for name in names:
        with suppress(DoesNotFitError):
            _other(name, _layers(network)[0].core)
    task.setup(stage)
    task.testing = stage == "test"
    loader = task.val_dataloader() if stage == "validate" else task.test_dataloader()
    trained = type(_layers(network)[0].core).__name__
    for name in (OWN, *names):
        try:
            before = [] if name == OWN else exchange(network, name)
        except DoesNotFitError as error:
            yield {"mechanism": name, "trained": trained, "refused": str(error)}
            continue
        evaluation, seconds = Evaluation(task, device), 0.0
        with torch.inference_mode():
            for number, batch in enumerate(loader):
                moved = module.transfer_batch_to_device(batch, device, 0)
                if number == 0:
                    network(moved)  # a first pass, which loads libraries, has no part in the time
                begun = time.perf_counter()
                output = network(moved)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                seconds += time.perf_counter() - begun
                evaluation.add(network, output, moved)
        measures = {key: float(value) for key, value in evaluation.compute().items()}
        for layer, core in before:
            layer.core = core
        yield {
            "mechanism": name,
            "trained": trained,
            "measures": measures,
            "forward_seconds": seconds,
        }
