"""Times of the parts of a training step: attention and the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clusterformer.attention.base import AttentionCore
from clusterformer.bench.timing import clock


class PartTimes:
    """Times of attention and the optimizer in the training steps of a model, on the CPU.

    Attention is the mechanism, forward and backward, without the projections around it. Its
    backward pass lasts from the gradient of its values to those of queries, keys and values; what a
    mechanism does with the hidden states themselves may come later.

    Attributes:
        milliseconds: Part to its time in the step so far; `clear` sets all to 0.
        sees_attention: False for a model with attention of its own, whose time nothing here takes.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.milliseconds: dict[str, float] = {}
        self.clear()
        self._begun: dict[Any, float] = {}
        cores = [module for module in model.modules() if isinstance(module, AttentionCore)]
        self.sees_attention = bool(cores)
        for core in cores:
            core.register_forward_pre_hook(self._enter)
            core.register_forward_hook(self._leave)
        optimizer.register_step_pre_hook(lambda *_: self._start("optimizer"))
        optimizer.register_step_post_hook(lambda *_: self._stop("optimizer", "optimizer"))

    def clear(self) -> None:
        """Begin a new step."""
        self.milliseconds = {"attention": 0.0, "optimizer": 0.0}

    def _enter(self, core: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._start(core)

    def _leave(self, core: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        self._stop(core, "attention")
        learnt = [x for x in inputs if x.requires_grad]
        if learnt:
            output[0].register_hook(lambda _: self._start(core))
            torch.autograd.graph.register_multi_grad_hook(
                learnt, lambda _: self._stop(core, "attention")
            )

    def _start(self, what: Any) -> None:
        self._begun[what] = clock()

    def _stop(self, what: Any, part: str) -> None:
        self.milliseconds[part] += (clock() - self._begun.pop(what)) * 1e3
