"""An exported model for transformers: `AutoModelForSequenceClassification` with the folder's code.

B batch   N tokens   L labels
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.data.tokenizers import UNK
from clusterformer.errors import InputError
from clusterformer.huggingface.hub import HUB_OPTIONS, download
from clusterformer.models.classifier import TextClassifier
from clusterformer.models.pretrained import PretrainedClassifier
from clusterformer.task import Task
from clusterformer.tasks.labelling import Labelling
from clusterformer.tasks.similarity import Similarity
from clusterformer.training.exported import write_exported
from clusterformer.training.saved import Saved, fill, make, open_saved

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


class _Rows(NamedTuple):
    """A batch of a row classifier."""

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool, True at real tokens
    second: Tensor  # (B, N) bool, True at tokens of a second segment


class Rebuilt(NamedTuple):
    """A task and its network, with the weights of a checkpoint."""

    task: Task
    network: nn.Module


def rebuild(saved: Saved) -> Rebuilt:
    """Make the task and the network of a checkpoint.

    Raises:
        InputError: if configuration, state or weights do not fit.
    """
    module, task = make(saved)
    return Rebuilt(task, fill(saved, module, task).eval())


def is_row_classifier(rebuilt: Rebuilt) -> bool:
    """Tell whether one row of tokens gives scores, as transformers classifies sequences."""
    rows = isinstance(rebuilt.network, TextClassifier | PretrainedClassifier)
    return rows and isinstance(rebuilt.task, Labelling)


@cache
def transformers_classes() -> tuple[type, type]:
    """Make the configuration and the model that transformers loads from an exported folder."""
    from transformers import PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import SequenceClassifierOutput
    from transformers.utils import can_return_tuple

    class ClusterFormerConfig(PretrainedConfig):
        """Configuration of an exported classifier; what made the model is in clusterformer.json."""

        model_type = "clusterformer"

        @classmethod
        def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
            """Do nothing: the code is saved by `write_code`."""

    class ClusterFormerForSequenceClassification(PreTrainedModel):
        """A network that clusterformer trained, as transformers calls classifiers."""

        config_class = ClusterFormerConfig
        # transformers' Trainer divides the loss by the number of accumulated batches then; it
        # would take `**_` of `forward` for a loss that is divided already
        accepts_loss_kwargs = False

        def __init__(self, config: Any, saved: Saved) -> None:
            super().__init__(config)
            rebuilt = rebuild(saved)
            self.network, self._task = rebuilt.network, rebuilt.task
            self._saved = saved._replace(weights={})

        @classmethod
        def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
            """Do nothing: the code is saved by `write_code`."""

        @classmethod
        def from_pretrained(  # type: ignore[override]
            cls, name: str | os.PathLike[str], *_: Any, **options: Any
        ) -> Any:
            """Load the model of an exported folder, or of a name at huggingface.co.

            Raises:
                InputError: if an option would change the model, or there is none.
            """
            source = {key: options.pop(key) for key in HUB_OPTIONS if key in options}
            folder = Path(name) if Path(name).is_dir() else download(str(name), **source)
            written = ClusterFormerConfig.from_pretrained(folder)
            config = options.pop("config", None) or written
            dtype = options.pop("dtype", None) or options.pop("torch_dtype", None)
            dtype = getattr(torch, str(dtype), dtype)  # "float16" is torch.float16
            if not isinstance(dtype, torch.dtype) and dtype != "auto":
                options["dtype"] = dtype
            if config._attn_implementation not in (None, "eager"):
                options["attn_implementation"] = config._attn_implementation
            _refuse(str(name), written.to_dict(), config.to_dict(), options)
            model = cls(config, open_saved(folder)).eval()
            return model.to(dtype) if isinstance(dtype, torch.dtype) else model

        def save_pretrained(  # type: ignore[override]
            self,
            save_directory: str | os.PathLike[str],
            is_main_process: bool = True,
            state_dict: dict[str, Tensor] | None = None,
            max_shard_size: int | str | None = None,
        ) -> None:
            """Save the model as the folder that it came from, without tokenizer and card.

            The weights are one file of any size; `push_to_hub` gives a `max_shard_size`.
            """
            if not is_main_process:
                return
            folder = Path(save_directory)
            folder.mkdir(parents=True, exist_ok=True)
            weights = self.state_dict() if state_dict is None else state_dict
            write_exported(folder, self._saved._replace(weights=weights))
            write_code(folder)
            self.config.auto_map = AUTO_MAP
            self.config.save_pretrained(folder)

        @can_return_tuple
        def forward(
            self,
            input_ids: Tensor | None = None,
            attention_mask: Tensor | None = None,
            token_type_ids: Tensor | None = None,
            labels: Tensor | None = None,
            output_hidden_states: bool | None = None,
            **others: Any,
        ) -> SequenceClassifierOutput:
            """Logits (B, L) of rows of tokens (B, N), or (B, 1) on the scale of a similarity.

            Raises:
                ValueError: without tokens, or if vectors are given in their stead.
            """
            if input_ids is None or others.get("inputs_embeds") is not None:
                raise ValueError("an exported model reads tokens: give input_ids, no inputs_embeds")
            if others.get("output_attentions"):
                warnings.warn(
                    "an exported model returns no attention weights, so output_attentions=True "
                    "gives none",
                    stacklevel=2,
                )
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            if isinstance(self.network, TextClassifier):
                input_ids, mask = _without_empty_rows(input_ids, mask)
            segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            if output_hidden_states is None:
                output_hidden_states = self.config.output_hidden_states
            states: list[Tensor] | None = [] if output_hidden_states else None
            output = self.network(_Rows(input_ids, mask.bool(), segments.bool()), states)
            logits, loss = output.logits, None
            if isinstance(self._task, Similarity):
                logits = self._task.scores(output)[:, None]
                if labels is not None:
                    loss = F.mse_loss(logits[:, 0], labels.float())
            elif labels is not None:
                loss = F.cross_entropy(logits, labels)
            hidden = None if states is None else tuple(states)
            return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=hidden)

    for kind in (ClusterFormerConfig, ClusterFormerForSequenceClassification):
        kind.__qualname__ = kind.__name__  # by which pickle finds it in this module
    return ClusterFormerConfig, ClusterFormerForSequenceClassification


def __getattr__(name: str) -> Any:
    if name in ("ClusterFormerConfig", "ClusterFormerForSequenceClassification"):
        return next(kind for kind in transformers_classes() if kind.__name__ == name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _without_empty_rows(tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Make a row (B, N) without any token one unknown token, as our own tokenizers do."""
    if not tokens.shape[1]:  # which transformers makes of floats
        tokens = mask = tokens.new_zeros(len(tokens), 1, dtype=torch.long)
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    empty = first & ~mask.bool().any(1, keepdim=True)
    return tokens.masked_fill(empty, UNK), mask.bool() | empty


_OF_AUTO_CLASSES = {"adapter_kwargs", "code_revision", "trust_remote_code"}
"""Options that transformers' classes pass on, and that change no model."""

_FREE = {
    *("id2label", "label2id", "dtype", "_name_or_path", "auto_map"),
    *("output_hidden_states", "return_dict"),
}
"""Entries of the configuration by which a loaded model may differ from its folder. From
huggingface.co `auto_map` has the model's name in it."""


def _refuse(
    name: str, written: dict[str, Any], given: dict[str, Any], options: dict[str, Any]
) -> None:
    """Refuse options that a trained model cannot follow.

    Raises:
        InputError: for the first one.
    """
    changed = {key: given[key] for key in given.keys() - _FREE if given[key] != written.get(key)}
    if len(given.get("id2label", ())) != len(written.get("id2label", ())):
        changed["num_labels"] = len(given["id2label"])
    changed |= {
        key: value
        for key, value in options.items()
        if value is not None and key not in _OF_AUTO_CLASSES and not key.startswith("_")
    }
    if changed:
        key, value = min(changed.items())
        raise InputError(
            f"{name}: an exported model is loaded as it was trained, without {key}={value!r}"
        )


def write_code(folder: Path) -> None:
    """Write the file by which transformers finds the classes."""
    (folder / CODE_FILE).write_text(CODE, encoding="utf-8")
