"""The file that keeps a distillation, so that one that was killed goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clusterformer.errors import InputError, reading
from clusterformer.whole_files import write_tensors


class Progress(NamedTuple):
    """Progress of a distillation.

    Attributes:
        steps: Number of steps taken.
        before: Cosine with the original before the first step.
        after: The same before the last step.
    """

    steps: int = 0
    before: float = 0.0
    after: float = 0.0


class DistillationFile:
    """All that a distillation needs to go on to the same bits.

    Args:
        path: The file.
        identity: Tells this distillation from others, as `identify` does.
        model: Model that learns.
        optimizer: Its optimizer.
        schedule: Schedule of the learning rate.
    """

    def __init__(
        self,
        path: str | Path,
        identity: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
    ) -> None:
        self._path, self._identity = Path(path), identity
        self._parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
        self._device = next(model.parameters()).device

    def restore(self) -> Progress:
        """Bring back what was kept, and tell how far it was; nothing if there is no file.

        Raises:
            InputError: if the file is damaged, or of another distillation.
        """
        if not self._path.exists():
            return Progress()
        with reading(self._path, "a distillation that goes on; remove it to begin anew"):
            kept = torch.load(self._path, weights_only=True, map_location="cpu")
            same = kept["identity"] == self._identity
            progress = Progress(*kept["progress"])
        if not same:
            raise InputError(
                f"{self._path}: of a distillation with another model, texts or options; "
                "repeat those, or remove it"
            )
        for name, part in self._parts.items():
            part.load_state_dict(kept[name])
        torch.set_rng_state(kept["random"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(kept["random_cuda"], self._device)
        return progress

    def keep(self, progress: Progress) -> None:
        """Write the file anew: it is whole at any moment.

        Raises:
            InputError: if it cannot be written, such as on a full disk; the last one stays.
        """
        kept: dict[str, Any] = {name: part.state_dict() for name, part in self._parts.items()}
        kept |= {"identity": self._identity, "progress": tuple(progress)}
        kept["random"] = torch.get_rng_state()
        if self._device.type == "cuda":
            kept["random_cuda"] = torch.cuda.get_rng_state(self._device)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(self._path, kept)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written: {error.strerror}") from error


def identify(
    settings: dict[str, Any], weights: Iterable[tuple[str, Tensor]], texts: Iterable[Any]
) -> str:
    """Compute a digest of all that a distillation follows from.

    Args:
        settings: Options, as JSON takes them.
        weights: Names and weights of the original.
        texts: Texts, or batches of tensors.
    """
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16)
    for name, weight in weights:
        digest.update(f"{name} {tuple(weight.shape)} {weight.double().sum().item()}".encode())
    for text in texts:
        said = text if isinstance(text, str) else {key: x.tolist() for key, x in text.items()}
        digest.update(json.dumps(said).encode())
    return digest.hexdigest()
