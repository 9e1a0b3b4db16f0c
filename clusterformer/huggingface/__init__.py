"""Mechanisms in models of Hugging Face's transformers, and back to an ordinary folder.

Examples:
    >>> from clusterformer import huggingface
    >>> model = AutoModelForSequenceClassification.from_pretrained(folder)
    >>> huggingface.attach(model, "NeuralClusteringAttention", num_clusters=32)
    >>> model.save_pretrained(other)  # the mechanism is saved with it
    >>> model = huggingface.load(other)
    >>> huggingface.detach(model)  # its own attention again

Needs the extra `pretrained`. Nothing of transformers is imported before a function is called.
"""

from clusterformer.huggingface.attaching import attach, detach, is_attached
from clusterformer.huggingface.calibration import calibrate
from clusterformer.huggingface.distillation import distill
from clusterformer.huggingface.loading import from_config, load
from clusterformer.huggingface.positions import extend_positions
from clusterformer.huggingface.recording import groupings
from clusterformer.huggingface.shared_heads import share_heads
from clusterformer.huggingface.visibility import keys_seen

__all__ = [
    "attach",
    "calibrate",
    "detach",
    "distill",
    "extend_positions",
    "from_config",
    "groupings",
    "is_attached",
    "keys_seen",
    "load",
    "share_heads",
]
