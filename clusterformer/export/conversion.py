"""A pretrained model that gets another attention, and is written as a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer import huggingface
from clusterformer.attention import NeuralClusteringAttention
from clusterformer.export.folder import whole_model
from clusterformer.huggingface.dispatch import slots
from clusterformer.huggingface.positions import num_positions
from clusterformer.models.pretrained_model import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def extend(model: PreTrainedModel, tokenizer: Any, length: int) -> bool:
    """Make room for texts of `length` tokens; tell whether there was none."""
    positions = num_positions(model)
    if positions is None or positions >= length:
        return False
    huggingface.extend_positions(model, length)
    tokenizer.model_max_length = length
    return True


def attach(model: PreTrainedModel, mechanism: str, options: dict[str, Any]) -> None:
    """Attach a mechanism, with what pretrained encoders need of it.

    Neural clustering where nothing is causal begins with `global_tokens=1` and half of the heads
    local; `options` override both.

    Raises:
        ValueError: if there is no such mechanism, it does not fit the model, or an option is wrong.
    """
    huggingface.attach(model, mechanism, **options)
    cores = [slot.core for slot in slots(model)]  # a layer with a sliding window keeps it
    clustering = [core for core in cores if isinstance(core, NeuralClusteringAttention)]
    if clustering and not any(core.causal for core in clustering):
        start = {"global_tokens": 1, "local_heads": clustering[0].num_heads // 2}
        huggingface.attach(model, mechanism, **(start | options))


def write_model(
    model: PreTrainedModel, tokenizer: Any, source: Path, folder: Path, *, extended: bool = False
) -> None:
    """Write a model and its tokenizer as a folder, which appears whole or not at all.

    What sentence-transformers keeps beside the model in `source`, its modules and their settings,
    is copied. It has a limit of its own there, which an extended model's tokenizer replaces.
    """
    with whole_model(folder) as draft:
        with quiet():
            model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        beside = ("modules.json", "*sentence*.json", "[0-9]_*")
        for path in [path for pattern in beside for path in source.glob(pattern)]:
            if path.is_dir():
                shutil.copytree(path, draft / path.name)
            else:
                shutil.copy(path, draft)
        limits = draft / "sentence_bert_config.json"
        if extended and limits.is_file():
            settings = json.loads(limits.read_text(encoding="utf-8"))
            settings |= {"max_seq_length": tokenizer.model_max_length}
            limits.write_text(f"{json.dumps(settings, indent=2)}\n", encoding="utf-8")
