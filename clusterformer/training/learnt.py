"""What a run learnt, as the start of another training."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn

from clusterformer.attention.dense_warm_up import DenseWarmUp
from clusterformer.data.tokenizers import Tokenizer
from clusterformer.errors import InputError, making
from clusterformer.models.config import TransformerConfig
from clusterformer.structure import require_structure
from clusterformer.task import Task
from clusterformer.training.as_trained import refuse_other_split
from clusterformer.training.runs import Run

_log = logging.getLogger(__name__)

STACKS = ("encoder.", "decoder.")
"""Prefixes of the layers' weights; each stack may start from the other one."""

_EMBEDDINGS = ("embedding.", "source.", "target.", "keys.")
_OF_TEXTS = (*(f"{e}{part}" for e in _EMBEDDINGS for part in ("table.", "project.")), "segments.")
_OF_TOKENS = (*(f"{e}tokens." for e in _EMBEDDINGS), "values.", "predictor.", "bias", "following.")
_OF_RECORDINGS = ("mean", "scale", "subsampling.", "context.")
_OF_OUTPUTS = ("head.",)
_LAYER = re.compile(r"(\w+)\.layers\.\d+(?=\.)")
_MEANING = ("norm", "num_heads", "positions", "rotary_base", "query_scale")
"""Options of a network that change what its layers compute, but not the shapes of their weights."""

_LEAST = 0.05  # share of the weights that both have, of which fewer that fit are no start
_BY_ROW = (*(f"{e}{part}.weight" for e in _EMBEDDINGS for part in ("tokens", "table")), "bias")
"""Weights whose first rows mean the same whatever their number of rows."""


class Learnt(NamedTuple):
    """What a run learnt.

    Attributes:
        path: Run, checkpoint file or folder of an export, as the user gave it.
        kind: Name of its task's class.
        state: State of its task.
        tokenizer: Its tokenizer; None if another task cannot read text with it.
        weights: Weights of its network by name.
        options: Options of its model, by name.
        checkpoint: Name of the file of a run whose training has not ended; None for any other.
        data: Options of its task, by name.
    """

    path: str
    kind: str
    state: dict[str, Any]
    tokenizer: Tokenizer | None
    weights: dict[str, Tensor]
    options: Mapping[str, Any]
    checkpoint: str | None = None
    data: Mapping[str, Any] = {}


class Start(NamedTuple):
    """Report of a network's start from what a run learnt: numbers of weights, and names.

    Attributes:
        path: The run.
        total: Number of weights of the network.
        taken: Number of them that come from the run.
        new: Names of weights that the run does not have, or does not have all rows of.
        misfits: Names of weights that have another shape there.
        unused: Names of the run's weights that the network does not have.
        vocab_size: Number of tokens of the run's tokenizer, with which the task reads its texts;
            None if the task has its own.
        other_options: Options by which layers compute something else with the same weights.
        warmed_up: Whether the dense warm-up that the network asks for was over in the run.
    """

    path: str
    total: int
    taken: int
    new: list[str]
    misfits: list[str]
    unused: list[str]
    vocab_size: int | None = None
    other_options: Sequence[str] = ()
    warmed_up: bool = False

    def __str__(self) -> str:
        parts = {"new": self.new, "did not fit": self.misfits, "not used": self.unused}
        parts["other options than the run's"] = list(self.other_options)
        lists = "".join(f"; {what}: {', '.join(names)}" for what, names in parts.items() if names)
        tokenizer = f", and its tokenizer of {self.vocab_size:,} tokens" if self.vocab_size else ""
        taken = f"{self.taken:,} of {self.total:,} weights taken"
        dense = "; no dense warm-up (dense_steps): the run had it" if self.warmed_up else ""
        return f"init_from {self.path}: {taken}{tokenizer}{lists}{dense}"


def open_learnt(path: str) -> Learnt:
    """Read what a run learnt.

    Args:
        path: Run directory, checkpoint file, or folder of `clusterformer export`.

    Raises:
        InputError: if it is none, or its network is a pretrained model of transformers.
    """
    from clusterformer.training.saved import open_saved  # which imports the module

    try:
        saved = open_saved(path)
    except InputError as error:
        raise InputError(f"init_from: {error}") from error
    if saved.config["model"].get("pretrained"):
        raise InputError(
            f"init_from {path}: its network is a model of transformers; `clusterformer export` it, "
            "and give that folder as model.pretrained"
        )
    module, _, name = str(saved.config["data"]["class_path"]).rpartition(".")
    task = getattr(sys.modules[module], name)  # `open_saved` has imported it
    require_structure(saved.state, task.state_type, f"init_from {path}: refused, task")
    with making(f"init_from {path}: refused, task"):
        tokenizer = task.saved_tokenizer(saved.state)
    weights = {
        name.removeprefix("network."): weight
        for name, weight in saved.weights.items()
        if name.startswith("network.")
    }
    ended = not Path(path).is_dir() or saved.path.is_dir() or Run.open(path).finished
    checkpoint = None if ended else saved.path.name
    options, data = saved.config["model"], saved.config["data"].get("init_args") or {}
    return Learnt(path, saved.kind, saved.state, tokenizer, weights, options, checkpoint, data)


def start_task(
    network: nn.Module, task: Task, trainer: Trainer, config: TransformerConfig
) -> Start | None:
    """Start a task's network from the run of `init_from`, if a training begins and there is one.

    Raises:
        InputError: as `open_learnt` and `start_from` do, and for a run of another split.
    """
    if not task.init_from or task.restored or trainer.state.fn != TrainerFn.FITTING:
        return None
    learnt = task.learnt or open_learnt(task.init_from)
    if own := trainer.lightning_module.config:  # of the command line
        used = yaml.safe_load(str(own))["data"].get("init_args") or {}
        refuse_other_split(learnt.data, used, learnt.path)
    same = _same_state(learnt, task)
    same_tokens = same or task.learnt is not None  # the task took the run's tokenizer
    start = start_from(network, learnt, same_tokens=same_tokens, same_outputs=same)
    cores = [m for m in network.modules() if isinstance(m, DenseWarmUp) and m.dense_steps]
    start = start._replace(
        other_options=_other_options(learnt, config),
        warmed_up=any(int(core.passes) >= core.dense_steps for core in cores),
    )
    if task.learnt is not None and learnt.tokenizer is not None:
        start = start._replace(vocab_size=learnt.tokenizer.vocab_size)
    rank_zero_only(_log.info)(str(start))
    if learnt.checkpoint:
        rank_zero_only(_log.warning)(
            "init_from %s: its training has not ended; these are the weights of its %s",
            learnt.path,
            learnt.checkpoint,
        )
    task.learnt = None
    return start


def _other_options(learnt: Learnt, config: TransformerConfig) -> list[str]:
    """Describe the options of a network that are not those with which the run's layers learnt."""
    return [
        f"{name} {getattr(config, name)} (there {learnt.options[name]})"
        for name in _MEANING
        if name in learnt.options and learnt.options[name] != getattr(config, name)
    ]


def _same_state(learnt: Learnt, task: Task) -> bool:
    """Tell whether a task is that of the run, and numbers tokens, labels and units alike."""
    state = task.state()
    return learnt.kind == type(task).__name__ and all(
        _equal(learnt.state.get(name), state[name]) for name in state if name not in task.sizes
    )


def _equal(one: Any, other: Any) -> bool:
    """Compare values of states, tensors among them."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return bool(one == other)


@torch.no_grad()
def start_from(
    network: nn.Module, learnt: Learnt, *, same_tokens: bool, same_outputs: bool
) -> Start:
    """Give a network the weights that a run learnt, where it has such weights.

    Layers, positions, segments and what reads recordings before an encoder are taken by name; an
    encoder may start from a decoder and the other way round. Embeddings, and what maps to tokens,
    are taken only if both number tokens alike; where the numbers of rows differ, the rows that both
    have. A head is taken if its outputs mean the same: labels of the same task, units of speech.

    Args:
        network: Network to start; changed in place.
        learnt: What a run learnt.
        same_tokens: Whether the first token ids mean the same to both.
        same_outputs: Whether the outputs of a head do.

    Raises:
        InputError: if nothing of it fits, or next to nothing, as with another width.
    """
    own = network.state_dict()
    known = _OF_TEXTS + _OF_RECORDINGS
    known += (_OF_TOKENS if same_tokens else ()) + (_OF_OUTPUTS if same_outputs else ())
    sources = {name: _source(name, learnt.weights, known) for name in own}
    for name in own.keys() & _tied(network):  # counted under their first name
        del own[name]
    taken, unfit = 0, 0
    new, misfits, left = [], [], []
    for name, weight in own.items():
        source = learnt.weights.get(sources[name] or "")
        if source is None:
            new.append(name)
        elif source.shape == weight.shape:
            weight.copy_(source)
            taken += weight.numel()
        elif name in _BY_ROW and source.shape[1:] == weight.shape[1:]:
            rows = min(len(source), len(weight))
            weight[:rows].copy_(source[:rows])
            taken += weight[:rows].numel()
            if rows < len(weight):
                new.append(f"{name} ({len(weight) - rows} of {len(weight):,} rows)")
            if rows < len(source):
                left.append(f"{name} ({len(source) - rows} of {len(source):,} rows)")
        else:
            unfit += weight.numel()
            misfits.append(f"{name} {tuple(source.shape)} for {tuple(weight.shape)}")
    total = sum(weight.numel() for weight in own.values())
    if not taken or taken < _LEAST * (taken + unfit):
        reason = f": {misfits[0]}" if misfits else ""
        nothing = f"nothing but {taken:,} weights" if taken else "nothing"
        raise InputError(
            f"init_from {learnt.path}: {nothing} of this run of {learnt.kind} fits the model"
            f"{reason}; give the model options of that run, such as d_model and num_layers"
        )
    unused = [*sorted(set(learnt.weights) - set(sources.values())), *left]
    return Start(
        learnt.path, total, taken,
        _shorten(new, own), _shorten(misfits, own), _shorten(unused, learnt.weights),
    )  # fmt: skip


def _source(name: str, weights: Mapping[str, Tensor], known: tuple[str, ...]) -> str | None:
    """Name the run's weight for a weight of the network; None if there is none.

    Args:
        known: Prefixes of what is taken beside the layers.
    """
    if name.startswith(STACKS):
        prefix = name.partition(".")[0] + "."
        if not any(other.startswith(prefix) for other in weights):
            (prefix_there,) = {*STACKS} - {prefix}
            name = prefix_there + name.removeprefix(prefix)
    elif not name.startswith(known):
        return None
    return name if name in weights else None


def _tied(network: nn.Module) -> set[str]:
    """Names of weights that have another name before, as a table that is an output map too."""
    every = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    return every - dict(network.named_parameters()).keys()


def _shorten(names: list[str], weights: Mapping[str, Tensor]) -> list[str]:
    """Name the same weight of several layers once, a whole layer once, and at most eight in all."""
    layers = {layer for name in weights if (layer := _layer(name))}
    whole = {layer for layer in layers if {n for n in weights if _layer(n) == layer} <= {*names}}
    if whole == layers:  # then weights say more than numbers of layers
        whole = set()
    short = (
        f"{_layer(name)}.*" if _layer(name) in whole else _LAYER.sub(r"\1.layers.*", name)
        for name in names
    )
    found = list(dict.fromkeys(short))
    return [*found[:8], f"{len(found) - 8} more"] if len(found) > 9 else found


def _layer(name: str) -> str | None:
    """Name the layer of a weight, such as encoder.layers.0."""
    found = _LAYER.match(name)
    return found[0] if found else None
