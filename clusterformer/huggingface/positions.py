"""More context: positions beyond those that a model was trained with.

E model width
"""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import nn

from clusterformer.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")


def extend_positions(
    model: Model, positions: int, *, scaling: Literal["yarn", "linear"] | None = None
) -> Model:
    """Give a model room for longer texts, in place.

    Learned positions are repeated: position p of n gets the embedding of p modulo n, so what was
    learnt about near tokens holds everywhere (as in Longformer, Beltagy et al., 2020, section 5).
    Texts within the old limit give the same bits as before. Rotary positions are rescaled for all
    texts, as `scaling` says; layers with a sliding window keep theirs. The config is changed with
    the model, so a saved folder has the new limit. Tokenizers have limits of their own:
    `tokenizer.model_max_length`.

    Args:
        model: Model with learned or rotary positions.
        positions: Number of tokens that a text may then have.
        scaling: Kind of rescaling of rotary positions: "yarn" (Peng et al., 2023) keeps the fast
            frequencies, "linear" divides every position. None: the model's own, such as Llama
            3.1's, or "yarn" if it has none.

    Returns:
        The same model.

    Raises:
        ValueError: if the model has other positions, or as many as that already, if its rotary
            positions are dynamic: those extend themselves; if its configuration does not allow the
            scaling, as Phi-3's; if they have another scaling already; or if learned ones are to be
            scaled.
    """
    if scaling not in (None, "yarn", "linear"):
        raise InputError(f'scaling must be "yarn" or "linear", got {scaling!r}')
    table = _learned(model)
    offset = 0 if table is None else _offset(*table)
    limit = getattr(model.config, "max_position_embeddings", 0) or 0
    held = limit if (learned := num_learned(model)) is None else learned
    if not isinstance(positions, int) or positions <= held:
        raise InputError(f"positions must be above {held}, which the model has, got {positions!r}")
    if table is not None and scaling is not None:
        raise InputError(
            f"scaling={scaling!r} is for rotary positions; those of {type(model).__name__} are "
            "learned, and repeated"
        )
    if table is not None:
        _repeat(*table, positions, offset)
    elif getattr(model.config, "rope_parameters", None):
        _rescale(model, positions, limit, scaling)
    else:
        raise InputError(
            f"{type(model).__name__} has neither rotary positions nor a table of learned ones by "
            "token; positions of other kinds cannot be extended"
        )
    # RoBERTa's config counts the rows before the first position too, OPT's does not
    model.config.max_position_embeddings = positions + limit - held
    return model


def _learned(model: nn.Module) -> tuple[nn.Module, str] | None:
    """Find the table of learned positions: the module that holds it, and its name there."""
    for module in model.modules():
        for name, child in module.named_children():
            positional = name in ("position_embeddings", "embed_positions", "wpe")
            if positional and isinstance(child, nn.Embedding):
                return module, name
    return None


def num_learned(model: nn.Module) -> int | None:
    """Count the learned positions of a model; None if it has none."""
    table = _learned(model)
    return None if table is None else int(getattr(*table).num_embeddings) - _offset(*table)


def num_positions(model: PreTrainedModel) -> int | None:
    """Return the number of tokens that a model has positions for; None if it has no limit."""
    learned = num_learned(model)
    return getattr(model.config, "max_position_embeddings", None) if learned is None else learned


def _offset(module: nn.Module, name: str) -> int:
    """Count the rows before the first position: RoBERTa's begin behind the padding index."""
    table: Any = getattr(module, name)
    if table.padding_idx is not None:
        return int(table.padding_idx) + 1
    return int(getattr(table, "offset", 0))


@torch.no_grad()
def _repeat(module: nn.Module, name: str, positions: int, offset: int) -> None:
    table: Any = getattr(module, name)
    old = table.weight[offset:]
    index = torch.arange(positions, device=old.device) % len(old)
    weight = torch.cat([table.weight[:offset], old[index]])
    total = len(weight)
    table.weight = nn.Parameter(weight, requires_grad=table.weight.requires_grad)
    before, table.num_embeddings = table.num_embeddings, total
    for key, buffer in list(module.named_buffers(recurse=False)):
        if buffer.shape == (1, before):  # position_ids counts up, token_type_ids holds zeros
            counts = torch.arange(total, device=buffer.device)[None]
            filled = counts if key == "position_ids" else torch.zeros_like(counts)
            setattr(module, key, nn.Buffer(filled.to(buffer.dtype), persistent=False))


def _rescale(model: PreTrainedModel, positions: int, limit: int, asked: str | None) -> None:
    config: Any = model.config
    scaling = asked or "yarn"
    parameters = deepcopy(config.rope_parameters)
    nested = {kind: value for kind, value in parameters.items() if isinstance(value, dict)}
    for kind, found in (nested or {"": parameters}).items():
        if kind == "sliding_attention":
            continue
        if found.get("rope_type", "default") == "default":
            found.update(rope_type=scaling, factor=positions / limit)
            if scaling == "yarn":
                found["original_max_position_embeddings"] = limit
        elif found["rope_type"] == "dynamic":
            raise InputError('rotary positions of type "dynamic" extend themselves with the text')
        elif "factor" in found and asked not in (None, found["rope_type"]):
            raise InputError(
                f"scaling={asked!r} cannot replace that of the model, {found['rope_type']!r}; "
                "leave it out to extend that"
            )
        elif "factor" in found:
            found["factor"] *= positions / limit
        else:
            raise InputError(f"rotary positions of type {found['rope_type']!r} cannot be extended")
    tried = deepcopy(config)
    tried.rope_parameters, tried.max_position_embeddings = parameters, positions
    try:
        tried.validate_rope()
    except ValueError as error:  # Phi-3 has a kind of its own; else it could not be saved
        raise InputError(
            f"rotary positions of {type(model).__name__} cannot be scaled by {scaling!r}: {error}"
        ) from error
    config.rope_parameters = parameters
    config.max_position_embeddings = positions
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RotaryEmbedding"):
            parent = model.get_submodule(name.rpartition(".")[0])
            device = next(buffer.device for buffer in module.buffers())
            accepted = inspect.signature(type(module)).parameters
            fresh = type(module)(config=config) if "config" in accepted else None
            if fresh is None:
                raise InputError(f"{name} takes no config; its positions cannot be extended")
            setattr(parent, name.rpartition(".")[2], fresh.to(device))
