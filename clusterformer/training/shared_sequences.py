"""Training in which several processes share each sequence, and groups of them the batch."""

from __future__ import annotations

from typing import Any, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch import Tensor, nn

from clusterformer.errors import InputError
from clusterformer.losses import IGNORE
from clusterformer.models.classifier import PairClassifier, TextClassifier
from clusterformer.models.language_model import LanguageModel
from clusterformer.models.masked_language_model import MaskedLanguageModel
from clusterformer.sequence_parallel import SequenceGroup, parallelize

Shareable = LanguageModel | MaskedLanguageModel | TextClassifier | PairClassifier
"""Networks that can read shared sequences."""


class SharedSequenceStrategy(DDPStrategy):
    """DDP whose processes share each sequence in groups: a mesh of batch and sequence.

    Each process of a group reads the same rows and keeps its part of their tokens; only attention
    needs the others, see `clusterformer.sequence_parallel`. DDP's mean of the gradients over all
    processes is that of the whole batch, as losses are sums over real tokens.

    Args:
        group_size: Number of processes that share a sequence, which divides those of a machine;
            None for all of a machine.
    """

    def __init__(self, group_size: int | None = None) -> None:
        super().__init__()
        self._group_size = group_size
        self._group: SequenceGroup | None = None
        self._divided: nn.Module | None = None
        self._first = 0  # position of this process's first token

    @property
    def sequence_size(self) -> int:
        """Number of processes that share a sequence."""
        return self._group_size or self.num_processes

    def setup_environment(self) -> None:
        super().setup_environment()
        size = self.sequence_size
        if self.num_processes % size:
            raise InputError(
                f"trainer.strategy sequence_parallel_{size} needs a multiple of {size} processes a "
                f"machine, got trainer.devices {self.num_processes}"
            )
        # a group of its own: DDP sends gradients while attention sends tokens
        for first in range(0, self.world_size, size):  # every process makes every group
            group = dist.new_group(range(first, first + size))
            if first <= self.global_rank < first + size:
                self._group = SequenceGroup(group)

    def divide(self, network: nn.Module) -> None:
        """Let the attention of a network run over shared sequences, in place, if it does not yet.

        Raises:
            InputError: unless it is one of `Shareable`, and its mechanism can be shared.
        """
        if network is self._divided:
            return
        if type(network) not in get_args(Shareable):
            raise InputError(
                "trainer.strategy sequence_parallel trains LanguageModeling, "
                "MaskedLanguageModeling, Classification, Inference and Matching from their own "
                f"weights, got a {type(network).__name__}; take ddp or fsdp2"
            )
        assert self._group is not None
        try:
            parallelize(network, self._group)
        except ValueError as error:
            raise InputError(f"trainer.strategy sequence_parallel: {error}") from error
        self._divided = network
        assert isinstance(network, Shareable)
        if not isinstance(network, LanguageModel):
            network.group = self._group
        network.embedding.register_forward_pre_hook(lambda _, args: (args[0], self._first))

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Keep this process's part of the tokens of a batch."""
        assert self._group is not None
        batch = super().batch_to_device(batch, device, dataloader_idx)
        size, rank = self._group.size, self._group.rank
        missing = max(0, size - batch.tokens.shape[1])  # each process has a token
        length = batch.tokens.shape[1] + missing
        self._first, last = (length * part // size for part in (rank, rank + 1))
        own: dict[str, Tensor] = {}
        if hasattr(batch, "asked"):
            asked, target = _asked_part(batch.asked, batch.target, self._first, last)
            own = {"asked": asked, "target": target}
        for name, x in batch._asdict().items():
            if name in own:
                continue
            if x.dim() == 2:
                own[name] = F.pad(x, (0, missing), value=_NONE.get(name, 0))[:, self._first : last]
            elif rank and name in _NONE:  # the first process counts what is said of a whole row
                own[name] = torch.full_like(x, _NONE[name])
        return batch._replace(**own)


_NONE = {"target": IGNORE, "row": -1, "group": 0}
"""Values of fields of a batch where there is nothing to count."""


def _asked_part(asked: Tensor, target: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Take the positions (B, A) from `first` to `last` - 1, counted from `first`, and targets."""
    inside = (asked >= first) & (asked < last) & (target != IGNORE)
    width = max(1, int(inside.sum(1).max()))
    order = inside.int().argsort(dim=1, descending=True, stable=True)[:, :width]
    inside = inside.gather(1, order)
    own = asked.gather(1, order) - first
    return own.masked_fill(~inside, 0), target.gather(1, order).masked_fill(~inside, IGNORE)


def sequence_size(trainer: Any) -> int:
    """Number of processes that share each sequence in a training; 1 without a trainer."""
    return getattr(getattr(trainer, "strategy", None), "sequence_size", 1)


StrategyRegistry.register(
    "sequence_parallel",
    SharedSequenceStrategy,
    description="the processes of a machine share each sequence",
)
for _size in (2, 4, 8, 16, 32):
    StrategyRegistry.register(
        f"sequence_parallel_{_size}",
        SharedSequenceStrategy,
        description=f"groups of {_size} processes share each sequence",
        group_size=_size,
    )
