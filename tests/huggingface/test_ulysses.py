"""Under DeepSpeed's Ulysses a mechanism gives what one process gives.

Ulysses replaces the function that it finds by name by one that exchanges tokens for heads, calls
the function for its heads of all tokens, without a mask, and exchanges back. Where DeepSpeed is
not installed, `exchanging` below does just that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import in_processes
from torch import Tensor

from clusterformer import huggingface
from clusterformer.huggingface.dispatch import IMPLEMENTATION, SLOT, attend
from clusterformer.sequence_parallel import SequenceGroup

LENGTH = 24
CLUSTERS = {"num_clusters": 3, "chunk_size": 4, "dense_length": 0}


def exchanging(function: Callable[..., Any], group: SequenceGroup) -> Callable[..., Any]:
    def exchange(x: Tensor, size: int) -> Tensor:
        """Send the size-th parts of the first dimension to the processes: (P, ...) -> (P, ...)."""
        rows = x.reshape(size, -1)
        return group.exchange(rows, [1] * size, [1] * size).view(x.shape)

    def attend(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        size = group.size
        heads = []
        for x in (q, k, v):  # (B, H, n, D) -> (B, H / P, N, D)
            if x.shape[1] < size:  # heads of keys and values that several processes need
                x = x.repeat_interleave(size // x.shape[1], 1)
            parts = exchange(x.unflatten(1, (size, -1)).movedim(1, 0).contiguous(), size)
            heads.append(parts.movedim(0, 2).flatten(2, 3))
        kwargs["position_ids"] = torch.cat(group.gather(kwargs["position_ids"]), 1)
        out, _ = function(module, *heads, None, *args, **kwargs)  # (B, N, H / P, D)
        parts = exchange(out.unflatten(1, (size, -1)).movedim(1, 0).contiguous(), size)
        return parts.movedim(0, 2).flatten(2).contiguous(), None  # (B, n, H D)

    return attend


@contextmanager
def ulysses(model: Any, size: int, rows: int) -> Iterator[dist.ProcessGroup | None]:
    if find_spec("deepspeed"):
        import deepspeed
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
        mpu = UlyssesSPAttentionHF.register_with_transformers(
            model, IMPLEMENTATION, sequence_parallel_size=size, micro_batch_size=rows
        )
        yield mpu.get_sequence_parallel_group()
    else:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        function = ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION]
        ALL_ATTENTION_FUNCTIONS[IMPLEMENTATION] = exchanging(function, SequenceGroup())
        yield None


def decoder(make: Callable[..., Any], family: str, mechanism: str) -> Any:
    torch.manual_seed(0)
    model = make(family, "ForCausalLM", use_cache=False)
    options = CLUSTERS if mechanism == "NeuralClusteringAttention" else {}
    return huggingface.attach(model, mechanism, **options).train()


def step(model: Any, part: slice) -> dict[str, Tensor]:
    tokens = torch.randint(3, 50, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(LENGTH).expand(2, -1)
    logits = model(input_ids=tokens[:, part], position_ids=positions[:, part]).logits
    (logits * torch.linspace(-1, 1, 50)).sum(-1).tanh().sum().backward()
    found = {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
    return {"logits": logits.detach()} | {k: v for k, v in found.items() if v is not None}


def share(
    rank: int, make: Callable[..., Any], family: str, mechanism: str, size: int, store: str
) -> dict[str, Tensor]:
    torch.set_num_threads(1)
    options: dict[str, Any] = {"rank": rank, "world_size": size, "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", init_method=f"file://{store}", **options)
    model, length = decoder(make, family, mechanism), LENGTH // size
    with ulysses(model, size, rows=2) as group:
        huggingface.share_heads(model, group)
        found = step(model, slice(rank * length, (rank + 1) * length))
    for name, value in found.items():
        if name != "logits":
            dist.all_reduce(value)
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize(
    ("family", "mechanism", "size"),
    [
        ("Llama", "NeuralClusteringAttention", 2),
        pytest.param("Qwen3", "FullAttention", 2, marks=pytest.mark.slow),
        pytest.param("Mistral", "NeuralClusteringAttention", 4, marks=pytest.mark.slow),
    ],
)
def test_it_is_what_one_process_computes(
    family: str, mechanism: str, size: int, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    expected = step(decoder(tiny, family, mechanism), slice(None))
    parts = in_processes(size, share, tiny, family, mechanism, size, str(tmp_path / "store"))
    found = torch.cat([part.pop("logits") for part in parts], 1)
    torch.testing.assert_close(found, expected.pop("logits"), atol=1e-5, rtol=1e-5)
    for part in parts:
        assert part.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(part[name], value, atol=1e-5, rtol=1e-5)


def test_what_cannot_share_heads_is_refused(tiny: Callable[..., Any], tmp_path: Path) -> None:
    in_processes(1, refuse, tiny, str(tmp_path / "store"))


def refuse(rank: int, make: Callable[..., Any], store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    model = make("Llama")
    with pytest.raises(ValueError, match="attach one first"):
        huggingface.share_heads(model)
    huggingface.attach(model, "RoutingAttention")
    with pytest.raises(ValueError, match="got RoutingAttention"):
        huggingface.share_heads(model)
    huggingface.attach(model, "NeuralClusteringAttention", local_heads=2)
    with pytest.raises(ValueError, match="need local_heads=0, got 2"):
        huggingface.share_heads(model)
    dist.destroy_process_group()


def test_a_sequence_that_is_shared_without_share_heads_is_explained(
    tiny: Callable[..., Any],
) -> None:
    model = huggingface.attach(tiny("Llama"), "FullAttention")
    layer = next(module for module in model.modules() if hasattr(module, SLOT))
    getattr(layer, SLOT).store_input(torch.zeros(1, 5, 64), None)
    half = torch.zeros(1, 2, 10, 16)  # of the heads, for the tokens of two processes
    with pytest.raises(ValueError, match=r"2 heads .*, the mechanism 4 .*share_heads missing"):
        attend(layer, half, half, half, None)
