"""Training in which several processes share each sequence, and groups of them the batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from torch import Tensor, nn

from clusterformer.errors import InputError
from clusterformer.losses import IGNORE
from clusterformer.models.language_model import LanguageModel
from clusterformer.sequence_parallel import SequenceGroup, parallelize


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
            InputError: unless it is a language model whose mechanism can be shared.
        """
        if network is self._divided:
            return
        if not isinstance(network, LanguageModel):
            raise InputError(
                "trainer.strategy sequence_parallel trains language models, "
                f"got a {type(network).__name__}; take ddp or fsdp2"
            )
        assert self._group is not None
        try:
            parallelize(network, self._group)
        except ValueError as error:
            raise InputError(f"trainer.strategy sequence_parallel: {error}") from error
        self._divided = network
        network.embedding.register_forward_pre_hook(lambda _, args: (args[0], self._first))

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Keep this process's part of the tokens of a batch."""
        assert self._group is not None
        batch = super().batch_to_device(batch, device, dataloader_idx)
        size, rank = self._group.size, self._group.rank
        missing = max(0, size - batch.tokens.shape[1])  # each process has a token
        fill = {"target": IGNORE}
        length = batch.tokens.shape[1] + missing
        self._first, last = (length * part // size for part in (rank, rank + 1))

        def part(name: str, x: Tensor) -> Tensor:
            return F.pad(x, (0, missing), value=fill.get(name, 0))[:, self._first : last]

        return batch._replace(**{name: part(name, x) for name, x in batch._asdict().items()})


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
