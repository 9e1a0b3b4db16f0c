"""Layers to measure, by name: our mechanisms, forms of neural clustering, and public packages.

B batch   H heads   N tokens   E model width
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import isabstract, signature
from typing import Any

import torch
from torch import Tensor, nn

from clusterformer import attention
from clusterformer.attention import PAPER_FORM, Attended, AttentionCore, MultiHeadAttention
from clusterformer.attention.base import Causal
from clusterformer.bench.peers import PEERS
from clusterformer.errors import InputError, making
from clusterformer.models.config import TransformerConfig
from clusterformer.models.transformer import Encoder, StackOutput
from clusterformer.stack_groupings import StackGroupings, keys_seen
from clusterformer.wording import suggested
from clusterformer.working_folder import import_from_working_folder

FORMS: dict[str, dict[str, Any]] = {"paper": PAPER_FORM, "neural": {}}
"""Forms of NeuralClusteringAttention and their options: the paper's own, and the default."""

PAPER_NAMES = ("full", "shared-full", "lsh-N", "clustered-N", "i-clustered-N", "oracle-top")
"""Names of figure 4 and table 1 of the paper on clustered attention: N rounds, or N clusters."""

WIDTHS: dict[str, dict[str, Any]] = {
    "blocks-64": {"block_size": 64, "dense_length": 0},
    "blocks-128": {"block_size": 128, "dense_length": 0},
    "chunks-32": {"chunk_size": 32, "dense_length": 0},
    "chunks-64": {"chunk_size": 64, "dense_length": 0},
    "chunks-128": {"chunk_size": 128, "dense_length": 0},
}
"""Neural clustering in blocks of other sizes, or chunks where it is causal, also of short texts."""

NUM_CLUSTERS: dict[str, Callable[[int], int]] = {
    "paper": lambda length: max(1, length // 64),  # blocks of 64: a token sees 128 keys
    "RoutingAttention": lambda length: max(1, length // 64),  # windows of 64, as in its package
}
"""Number of clusters at a length, unless the setting gives one; others have their own default."""

COMPILED = "-compiled"
"""Ending of the name of a layer that `torch.compile` compiles, for lengths of any size."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Setting:
    """Sizes shared by all layers of one comparison.

    Attributes:
        length: N, tokens of a sequence.
        tokens: Tokens of a batch.
        d_model: E.
        num_heads: H.
        num_clusters: Clusters of every mechanism that has them; None: as in `NUM_CLUSTERS`, else
            the mechanism's default.
        causal: Whether mechanisms take their strictly causal form.
        output: Whether the layer has its output projection.
        layers: Encoder layers instead of one attention layer; 0 for the latter.
        d_ff: Inner width of those layers; None: 4 E.
        dtype: "fp32", "bf16" or "fp16", for autocast.
        device: "cpu" or "cuda".
    """

    length: int
    tokens: int
    d_model: int
    num_heads: int
    num_clusters: int | None = None
    causal: bool = False
    output: bool = True
    layers: int = 0
    d_ff: int | None = None
    dtype: str = "fp32"
    device: str = "cpu"

    @property
    def batch(self) -> int:
        """B, sequences of a batch."""
        return max(1, self.tokens // self.length)


class Subject:
    """One layer at one setting, with its input; two of one setting have equal projections.

    Args:
        name: Class of a mechanism, form of neural clustering, or public package; with `COMPILED`
            behind it the layer is compiled.
        setting: Sizes.

    Raises:
        InputError: if there is no such layer, or it has no form for the setting.
    """

    def __init__(self, name: str, setting: Setting) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = setting.batch, setting.length, setting.d_model
        x, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
        self._x = x.to(setting.device).requires_grad_()
        self._gradient = gradient.to(setting.device)
        self._autocast = torch.autocast(
            setting.device, DTYPES[setting.dtype], enabled=setting.dtype != "fp32"
        )
        torch.manual_seed(0)
        self._layer = _make_layer(name.removesuffix(COMPILED), setting).to(setting.device)
        if name.endswith(COMPILED):
            self._layer.compile(dynamic=True)

    def forward(self) -> Tensor:
        """Compute values (B, N, E) without gradients."""
        with torch.no_grad():
            return self._values()

    def step(self) -> None:
        """Run forward and backward."""
        self._layer.zero_grad()
        self._x.grad = None
        values = self._values()
        values.backward(self._gradient.to(values.dtype))

    @torch.no_grad()
    def keys_seen(self) -> float | None:
        """Measure the share of its text that a token attends to; None where a package is silent."""
        out = self._output()
        mask = torch.ones(self._x.shape[:2], dtype=torch.bool, device=self._x.device)
        if isinstance(out, StackOutput):
            groupings, cores = out.groupings, out.cores
        elif isinstance(out, Attended) and isinstance(self._layer, MultiHeadAttention):
            groupings, cores = [out.grouping], [self._layer.core]
        else:
            return None
        found = keys_seen([StackGroupings("", groupings, mask, cores)])
        return float(found[0] / found[1]) if found else None

    def _values(self) -> Tensor:
        out = self._output()
        if isinstance(out, Tensor):
            return out
        return out.hidden if isinstance(out, StackOutput) else out.values

    def _output(self) -> Tensor | Attended | StackOutput:
        with self._autocast:
            return self._layer(self._x)


def default_names(causal: bool) -> list[str]:
    """List all mechanisms, with neural clustering in its forms, that fit a setting."""
    kinds = [kind for kind in attention.mechanisms() if not causal or True in kind.causal_forms]
    names = [*(kind.__name__ for kind in kinds), *FORMS]
    names.remove("NeuralClusteringAttention")  # the form "neural"
    if causal:
        names.remove("paper")  # it reads the future
    return names


def choose_mechanisms(names: Sequence[str] | None) -> dict[str, type[AttentionCore]]:
    """Look up classes of mechanisms by name, in the order given; None for all.

    Raises:
        InputError: if there is no mechanism of a name.
    """
    if not names:
        return {kind.__name__: kind for kind in attention.mechanisms()}
    return {name: _mechanism(name) for name in names}


def takes_clusters(kind: type[AttentionCore]) -> bool:
    """Tell whether a mechanism has a number of clusters among its options."""
    return "num_clusters" in signature(kind).parameters


def _mechanism(name: str, others: Iterable[str] = ()) -> type[AttentionCore]:
    """Look up one class: by its name if it is ours, by its full path if it is the user's."""
    kinds = {kind.__name__: kind for kind in attention.mechanisms()}
    if name in kinds:
        return kinds[name]
    module, _, last = name.rpartition(".")
    if not module:
        raise InputError(f"no mechanism {name!r}; {suggested(name, [*kinds, *others])}")
    import_from_working_folder()  # also in a fresh process
    with making(name):
        found = getattr(import_module(module), last, None)
    if not (isinstance(found, type) and issubclass(found, AttentionCore)) or isabstract(found):
        raise InputError(f"{name} is no mechanism, a subclass of AttentionCore with a forward")
    return found


def check_layers(names: Iterable[str], setting: Setting) -> None:
    """Make each layer once, so that a wrong name is refused before anything is measured.

    Raises:
        InputError: if there is no such layer, or it has no form for the setting.
    """
    for name in names:
        _make_layer(name.removesuffix(COMPILED), setting)


def make_layer_step(name: str, setting: Setting) -> Callable[[], None]:
    """Make the function that runs a subject forward and backward; for a fresh process."""
    return Subject(name, setting).step


def _make_layer(name: str, setting: Setting) -> nn.Module:
    if name in PEERS:
        if setting.layers or not setting.output or setting.causal:
            raise InputError(f"{name} is measured as a bidirectional layer with its output")
        return PEERS[name](setting.d_model, setting.num_heads, setting.length)
    if setting.layers:
        config = TransformerConfig(
            lambda d_model, num_heads: _make_core(name, setting),
            d_model=setting.d_model,
            num_heads=setting.num_heads,
            num_layers=setting.layers,
            d_ff=setting.d_ff or 4 * setting.d_model,
            dropout=0.0,
        )
        return Encoder(config)
    layer = MultiHeadAttention(_make_core(name, setting))
    generator = torch.Generator().manual_seed(1)
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        if isinstance(projection := getattr(layer, part, None), nn.Linear):
            nn.init.xavier_uniform_(projection.weight, generator=generator)
    if not setting.output:
        layer.out_proj = nn.Identity()  # type: ignore[assignment]
    return layer


def make_mechanism(name: str, d_model: int, num_heads: int, causal: Causal) -> AttentionCore:
    """Make a mechanism of a class, a form or a variant of that name.

    Raises:
        InputError: if there is none, or not with these options.
    """
    kind, options = _find(name)
    with making(name):
        return kind(d_model, num_heads, causal=causal, **options)


def causal_forms(name: str) -> tuple[Causal, ...]:
    """Return the causal forms of the mechanism of a class, a form or a variant of that name.

    Raises:
        InputError: if there is none.
    """
    return _find(name)[0].causal_forms


def _find(name: str) -> tuple[type[AttentionCore], dict[str, Any]]:
    """Look up the class and the options of a name."""
    forms = FORMS | WIDTHS
    found, options = _of_paper(name) or (name, forms.get(name, {}))
    found = "NeuralClusteringAttention" if name in forms else found
    return _mechanism(found, [*FORMS, *WIDTHS, *PAPER_NAMES, *PEERS]), dict(options)


def _of_paper(name: str) -> tuple[str, dict[str, Any]] | None:
    """Look up what the paper on clustered attention calls so, such as i-clustered-100."""
    kind, _, number = name.rpartition("-")
    if number.isdecimal() and int(number):
        numbered: dict[str, tuple[str, dict[str, Any]]] = {
            "lsh": ("ReformerAttention", {"chunk_size": 32, "num_hashes": int(number)}),
            "clustered": ("ClusteredAttention", {"num_clusters": int(number)}),
            "i-clustered": ("ImprovedClusteredAttention", {"num_clusters": int(number)}),
            "oracle-top": ("OracleTopAttention", {"top_k": int(number)}),
        }
        return numbered.get(kind)
    named = {"full": "Full", "shared-full": "SharedQK", "oracle-top": "OracleTop"}
    return (f"{named[name]}Attention", {}) if name in named else None


def _make_core(name: str, setting: Setting) -> AttentionCore:
    kind, options = _find(name)
    if setting.causal:
        options["causal"] = True
    if takes_clusters(kind):
        if setting.num_clusters:
            options["num_clusters"] = setting.num_clusters
        elif name in NUM_CLUSTERS:
            options["num_clusters"] = NUM_CLUSTERS[name](setting.length)
    with making(name):
        return kind(setting.d_model, setting.num_heads, **options)
