"""Training without labels: a model with a mechanism learns to do what it did before.

B batch   N tokens   E model width
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.errors import InputError, require_at_least, require_positive
from clusterformer.huggingface.attaching import detach, is_attached
from clusterformer.huggingface.dispatch import SLOT, slots
from clusterformer.huggingface.distillation_file import DistillationFile, Progress, identify
from clusterformer.huggingface.recording import calls, evaluating, without_cache
from clusterformer.huggingface.texts import require_many, to_batches
from clusterformer.losses import mechanism_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)


class Distilled(NamedTuple):
    """Nearness of a model to what it was with its own attention.

    Attributes:
        before: Cosine of each token's last hidden state with that of the original, mean over the
            first batch, before it was learnt from.
        after: The same of the last batch, before it was learnt from.
    """

    before: float
    after: float


def distill(
    model: PreTrainedModel,
    texts: Sequence[str] | Iterable[dict[str, Tensor]],
    tokenizer: Any = None,
    *,
    steps: int = 200,
    lr: float = 1e-4,
    mechanism_lr: float = 1e-3,
    max_length: int = 256,
    batch_size: int = 8,
    checkpoint: str | Path | None = None,
) -> Distilled:
    """Train a model with a mechanism to give the hidden states that it gave without it.

    Its original, a copy with its own attention, is the teacher. The loss is the squared distance
    between the hidden states of both, as a share of the teacher's squared norm, mean over tokens
    and layers; mechanisms add their own, such as that by which an indexer learns. Weights learn by
    AdamW with a rate that falls to zero; learnt centroids of neural clustering stay where
    `calibrate` put them. No labels are needed, and heads on top of the hidden states keep their
    meaning.

    Args:
        model: Model with a mechanism attached, best after `calibrate`.
        texts: Texts like those that the model is for, or batches as the model takes them; again
            from the start if `steps` need more.
        tokenizer: Tokenizer of the model, for texts.
        steps: Number of training steps.
        lr: Learning rate of the weights that the model had.
        mechanism_lr: Learning rate of the mechanism's weights.
        max_length: Maximum number of tokens of a text, for texts.
        batch_size: Number of texts of a batch, for texts.
        checkpoint: File that keeps the training, written each tenth of the steps. The same call on
            the same model, under the same `torch.manual_seed` and autocast, goes on from it, to the
            same weights; the mechanism need not be calibrated again. Remove it when they are saved.

    Raises:
        ValueError: if no mechanism is attached, PEFT has wrapped the model, it is float16, there is
            no text, or the checkpoint is damaged or of another call.
    """
    require_at_least(1, steps=steps)
    require_positive(lr=lr, mechanism_lr=mechanism_lr)
    if not is_attached(model):
        raise InputError("distill needs a model with a mechanism attached")
    if model.dtype == torch.float16:
        raise InputError("distill cannot train in float16; give model.float() or bfloat16")
    teacher = detach(copy.deepcopy(model)).base_model.eval()
    new: list[Tensor] = []
    own: list[Tensor] = []
    for name, parameter in model.base_model.named_parameters():
        if parameter.requires_grad:
            (new if f"{SLOT}." in name else own).append(parameter)
    groups = [{"params": own, "lr": lr}, {"params": new, "lr": mechanism_lr}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, 10 * (step + 1) / steps) * (1 - step / steps)
    )
    options = {"output_hidden_states": True, **without_cache(teacher)}
    require_many(texts)
    texts = texts if isinstance(texts, Sequence) else list(texts)
    file, progress = None, Progress()
    if checkpoint is not None:
        settings: dict[str, Any] = {"steps": steps, "lr": lr, "mechanism_lr": mechanism_lr}
        settings |= {"max_length": max_length, "batch_size": batch_size}
        settings |= {"attention": model.config.clusterformer, "seed": torch.initial_seed()}
        device = model.device.type
        if torch.is_autocast_enabled(device):
            settings["autocast"] = str(torch.get_autocast_dtype(device))
        identity = identify(settings, teacher.named_parameters(), texts)
        file = DistillationFile(checkpoint, identity, model.base_model, optimizer, falling)
        progress = file.restore()
        if progress.steps:
            _log.info(f"{checkpoint}: goes on after step {progress.steps:,} of {steps:,}")
    with evaluating(model):  # dropout would be learnt to be undone
        for slot in slots(model):
            slot.train()  # mechanisms have none
        batches = _repeated(model, texts, tokenizer, max_length, batch_size, steps)
        left = itertools.islice(batches, progress.steps, None)
        for step, batch in enumerate(left, progress.steps + 1):
            with torch.no_grad():
                copies = {name: x.clone() for name, x in batch.items()}  # it may change them
                wanted = teacher(**copies, **options).hidden_states[1:]
            with calls(model) as layers:
                found = model.base_model(**batch, **options).hidden_states[1:]
            real = layers[0].mask
            pairs = [(x[real].float(), y[real].float()) for x, y in zip(found, wanted, strict=True)]
            cosine = float(F.cosine_similarity(*pairs[-1], dim=-1).detach().mean())
            progress = Progress(step, cosine if step == 1 else progress.before, cosine)
            optimizer.zero_grad()
            loss = torch.stack([_relative_error(*pair) for pair in pairs]).mean()
            further = mechanism_loss([layer.grouping for layer in layers])
            (loss if further is None else loss + further / real.sum()).backward()
            optimizer.step()
            falling.step()
            torch.clear_autocast_cache()  # of weights before the step, under the caller's autocast
            if step % max(1, steps // 10) == 0:
                _log.info(f"step {step:,} of {steps:,}: cosine with the original {cosine:.4f}")
                if file is not None:
                    file.keep(progress)
    optimizer.zero_grad()  # else they would be added to those of a further training
    return Distilled(progress.before, progress.after)


def _relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    """Mean over tokens (n, E) of the squared distance, as a share of the wanted squared norm."""
    return ((found - wanted).square().sum(-1) / wanted.square().sum(-1)).mean()


def _repeated(
    model: Any, texts: Sequence, tokenizer: Any, max_length: int, batch_size: int, steps: int
) -> Iterator[dict[str, Tensor]]:
    """Batches for so many steps; texts begin again where they end."""
    done = 0
    while done < steps:
        begun = done
        for batch in to_batches(model, texts, tokenizer, max_length, batch_size):
            if done == steps:
                return
            yield batch
            done += 1
        if done == begun:
            raise InputError("distill needs at least one text, got none")
