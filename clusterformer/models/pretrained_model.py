"""Models of transformers: made of a configuration, read from a folder, asked what they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch

from clusterformer import huggingface
from clusterformer.errors import InputError
from clusterformer.huggingface.positions import num_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_OF_CONVERTED = ("clusterformer", "attn_implementation", "auto_map")
"""Entries of the configuration of a model that was saved with a mechanism."""

_ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")
"""Entries by which attention weights are dropped. Mechanisms of ours drop none, so for an equal
training a model's own attention drops none; PyTorch has no fast kernel for it on CPU either."""


def make_model(model_config: dict[str, Any], weights: Path | None) -> PreTrainedModel:
    """Make the model that a configuration describes, in float32, without dropout of attention.

    Args:
        model_config: Configuration of the model, plain values as transformers writes them.
        weights: Folder of its weights, which `huggingface.load` reads if it has a mechanism; None
            for random ones, and its own attention.

    Raises:
        InputError: if transformers cannot read the weights.
    """
    from transformers import AutoConfig, AutoModel

    options = {key: value for key, value in model_config.items() if key not in _OF_CONVERTED}
    options |= dict.fromkeys(options.keys() & set(_ATTENTION_DROPOUT), 0.0)
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    if weights is None or torch.empty(()).is_meta:
        return AutoModel.from_config(config, dtype=torch.float32)
    with loading(str(weights)):
        if "clusterformer" in model_config:
            return huggingface.load(weights, "AutoModel", dtype=torch.float32)
        return read_weights(AutoModel, weights, config=config)


def read_weights(kind: Any, folder: Path, **options: Any) -> PreTrainedModel:
    """Read a model in float32; transformers gives random weights to what has none in the files.

    Args:
        kind: Class of transformers.
        folder: Folder of the model.
        **options: Options of `from_pretrained`.

    Raises:
        InputError: if a weight is missing or of another size. The pooler of a model without a head
            may be missing, as nothing reads it: many encoders were published with another head.
    """
    model, found = kind.from_pretrained(
        folder,
        dtype=torch.float32,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
        **options,
    )
    for name, there, wanted in sorted(found["mismatched_keys"]):
        sizes = f"{tuple(there)} in its files, but {tuple(wanted)} by its config.json"
        raise InputError(f"pretrained {folder}: {name} is {sizes}")
    has_head = model.base_model is not model
    missing = sorted(name for name in found["missing_keys"] if has_head or "pooler" not in name)
    if missing:
        raise InputError(
            f"pretrained {folder}: no weights for {missing[0]}, which config.json asks for"
            + f", and {len(missing) - 1} more" * (len(missing) > 1)
        )
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and noting what a user can do nothing about."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Keep transformers quiet, and turn what it raises about a model into one line.

    Args:
        name: Name of the model.

    Raises:
        InputError: for any exception.
    """
    try:
        with quiet():
            yield
    except InputError:
        raise
    except Exception as error:
        said = shorten(str(error), 250, placeholder=" ...") or type(error).__name__
        raise InputError(f"pretrained {name}: no model that transformers loads: {said}") from error


def read_num_positions(model_config: dict[str, Any]) -> int | None:
    """Return `num_positions` of the model that a configuration describes, without its weights."""
    with torch.device("meta"):
        return num_positions(make_model(model_config, None))


def read_causal(model_config: dict[str, Any]) -> bool:
    """Tell whether in the model that a configuration describes tokens see only earlier ones."""
    with torch.device("meta"):
        model = make_model(model_config, None)
    if getattr(model.config, "is_causal", True) is False:  # a decoder made bidirectional
        return False
    return any(getattr(part, "is_causal", False) for part in model.modules())
