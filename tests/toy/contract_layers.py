"""Small layers of every mechanism and causal form, for the tests of the contract."""

import inspect
import re
from pathlib import Path

import torch
from torch import Tensor

from clusterformer.attention import AttentionCore, MultiHeadAttention, mechanisms

WIDTH, HEADS = 32, 4
SMALL = {  # several blocks at the lengths used here
    "num_clusters": 5,
    "chunk_size": 4,
    "window": 5,
    "top_k": 4,
    "block_size": 7,
    "dense_length": 12,
    "local_window": 3,
}


def guide_example() -> type[AttentionCore]:
    """Return the mechanism that docs/guides/extend.md shows."""
    guide = Path(__file__).parents[2] / "docs" / "guides" / "extend.md"
    code = re.search(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    names: dict[str, type[AttentionCore]] = {}
    exec(code[1], names)  # type: ignore[arg-type]
    return names["MeanAttention"]


FORMS = [(cls, causal) for cls in mechanisms() for causal in cls.causal_forms]
FORMS.append((guide_example(), False))
STRICT = [cls for cls in mechanisms() if True in cls.causal_forms]


def name(value: object) -> str:
    return value.__name__ if isinstance(value, type) else f"causal={value}"


def build(cls: type[AttentionCore], causal: object = False) -> MultiHeadAttention:
    options = {k: v for k, v in SMALL.items() if k in inspect.signature(cls).parameters}
    return MultiHeadAttention(cls(WIDTH, HEADS, causal=causal, **options)).eval()


def mask_of(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths)[:, None]
