"""An exported model for transformers: `AutoModelForSequenceClassification` with the folder's code.

B batch   N tokens   L labels
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.data.pretrained import find_pretrained
from clusterformer.errors import InputError, making
from clusterformer.models.classifier import TextClassifier
from clusterformer.models.pretrained import PretrainedClassifier
from clusterformer.task import Task
from clusterformer.tasks.base import Labelling
from clusterformer.tasks.similarity import Similarity
from clusterformer.training.parser import instantiate, make_parser
from clusterformer.training.saved import Saved, open_saved, restore

CODE_FILE = "modeling_clusterformer.py"
CODE = '''"""Loads this model with transformers: pip install "clusterformer[pretrained]"."""

from clusterformer.export.modeling import transformers_classes

ClusterFormerConfig, ClusterFormerForSequenceClassification = transformers_classes()
'''
AUTO_MAP = {
    "AutoConfig": "modeling_clusterformer.ClusterFormerConfig",
    "AutoModelForSequenceClassification": (
        "modeling_clusterformer.ClusterFormerForSequenceClassification"
    ),
}


class Rebuilt(NamedTuple):
    """A task and its network, with the weights of a checkpoint."""

    task: Task
    network: nn.Module


def rebuild(saved: Saved) -> Rebuilt:
    """Make the task and the network of a checkpoint.

    Raises:
        InputError: if the weights do not fit.
    """
    parser = make_parser()
    made = instantiate(parser, parser.parse_object({n: saved.config[n] for n in ("model", "data")}))
    task: Task = made.data
    restore(task, saved.state, saved.path)
    with making(f"{saved.path}: refused"):
        network = task.build(made.model.transformer_config)
    weights = {name.removeprefix("network."): each for name, each in saved.weights.items()}
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).partition("\n\t")[2].partition("\n")[0]
        raise InputError(f"{saved.path}: its weights do not fit the model: {first}") from error
    return Rebuilt(task, network.eval())


def is_row_classifier(rebuilt: Rebuilt) -> bool:
    """Tell whether one row of tokens gives scores, as transformers classifies sequences."""
    rows = isinstance(rebuilt.network, TextClassifier | PretrainedClassifier)
    return rows and isinstance(rebuilt.task, Labelling)


@cache
def transformers_classes() -> tuple[type, type]:
    """Make the configuration and the model that transformers loads from an exported folder."""
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import SequenceClassifierOutput

    class ClusterFormerConfig(PretrainedConfig):
        """Configuration of an exported classifier; what made the model is in clusterformer.json."""

        model_type = "clusterformer"

    class ClusterFormerForSequenceClassification(PreTrainedModel):
        """A network that clusterformer trained, as transformers calls classifiers."""

        config_class = ClusterFormerConfig

        def __init__(self, config: Any, rebuilt: Rebuilt) -> None:
            super().__init__(config)
            self.network, self._task = rebuilt.network, rebuilt.task

        @classmethod
        def from_pretrained(  # type: ignore[override]
            cls, name: str | os.PathLike[str], *_: Any, **options: Any
        ) -> Any:
            """Load the model of an exported folder, or of a name at huggingface.co."""
            folder = find_pretrained(str(name))
            config = options.get("config") or ClusterFormerConfig.from_pretrained(folder)
            model = cls(config, rebuild(open_saved(folder))).eval()
            dtype = options.get("dtype")
            return model.to(dtype) if isinstance(dtype, torch.dtype) else model

        def forward(
            self,
            input_ids: Tensor,
            attention_mask: Tensor | None = None,
            token_type_ids: Tensor | None = None,
            labels: Tensor | None = None,
            **_: Any,
        ) -> SequenceClassifierOutput:
            """Logits (B, L) of rows of tokens (B, N), or (B, 1) on the scale of a similarity."""
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            batch = SimpleNamespace(tokens=input_ids, mask=mask.bool(), second=segments.bool())
            output = self.network(batch)
            logits, loss = output.logits, None
            if isinstance(self._task, Similarity):
                logits = self._task.scores(output)[:, None]
                if labels is not None:
                    loss = F.mse_loss(logits[:, 0], labels.float())
            elif labels is not None:
                loss = F.cross_entropy(logits, labels)
            return SequenceClassifierOutput(loss=loss, logits=logits)

    return ClusterFormerConfig, ClusterFormerForSequenceClassification


def write_code(folder: Path) -> None:
    """Write the file by which transformers finds the classes."""
    (folder / CODE_FILE).write_text(CODE, encoding="utf-8")
