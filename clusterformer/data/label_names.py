"""Labels of the training data: their order, their weights, and lists of labels in one cell."""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, TypedDict

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from clusterformer.errors import InputError

_log = logging.getLogger(__name__)

_SEPARATORS = ",;|"
_BRACKETS = "[](){}\"' "


def sorted_labels(labels: Iterable[str]) -> list[str]:
    """Sort the different labels.

    Raises:
        InputError: if there are fewer than 2, or they are lists of labels.
    """
    found = sorted(set(labels))
    if len(found) < 2:
        raise InputError(f"training needs texts of 2 labels or more, found {found}")
    refuse_lists(found)
    warn_of_alike(found)
    return found


def warn_of_alike(labels: Sequence[str]) -> None:
    """Warn of labels that a reader takes for one: "Yes" and "yes", 1 and 1.0, two forms of "é"."""
    alike: dict[str | Decimal, list[str]] = {}
    for label in labels:
        alike.setdefault(_plain(label), []).append(label)
    if found := next((each for each in alike.values() if len(each) > 1), None):
        rank_zero_only(_log.warning)(
            f"labels {' and '.join(map(ascii, found[:3]))} count as {len(found)} labels; if they "
            "are the same, write them in one way"
        )


def _plain(label: str) -> str | Decimal:
    """Return a label without what readers overlook: case, spaces, invisible characters."""
    with suppress(InvalidOperation):
        if (number := Decimal(label)).is_finite():
            return number
    seen = unicodedata.normalize("NFKC", label).casefold()
    shown = "".join(sign for sign in seen if unicodedata.category(sign) != "Cf")
    return unicodedata.normalize("NFC", " ".join(shown.split()))


def refuse_lists(labels: Sequence[str]) -> None:
    """Refuse labels that are lists of labels, such as "action,comedy".

    Some labels are lists if all parts of one are labels themselves, if one has a list's brackets,
    or if few parts make many labels in many combinations. A comma alone makes no list: "Portland,
    OR" is one label. Where a part is a label itself, as in "no, but" beside "no", a warning says
    that it counts as one label.

    Raises:
        InputError: with an example of a list.
    """
    for separator in _SEPARATORS:
        parts = {
            label: [part.strip(_BRACKETS) for part in label.strip(_BRACKETS).split(separator)]
            for label in labels
        }
        single = {split[0] for split in parts.values() if len(split) == 1}
        lists = {label: split for label, split in parts.items() if len(split) > 1 and all(split)}
        combined = {part for split in lists.values() for part in split}
        certain = (
            label
            for label, split in lists.items()
            if single.issuperset(split) or (label.startswith("[") and label.endswith("]"))
        )
        example = next(certain, None)
        if example is None and len(lists) > max(3, len(combined)):
            example = next(iter(lists))
        if example is not None:
            raise InputError(
                f"label {example!r} is a list of labels ({len(lists)} of {len(labels)} labels are "
                "lists); a text has one label here: give one label a text, or, where the list is "
                f"one label, write it without {separator!r}"
            )
        for label, split in lists.items():
            if shared := single.intersection(split):
                rank_zero_only(_log.warning)(
                    f"label {label!r} counts as one label, though {min(shared)!r} is a label too: "
                    "a text has one label here"
                )
                break


class LabellingState(TypedDict):
    """State of a task that gives labels in a checkpoint."""

    labels: list[str]
    tokenizer: dict[str, Any]
    label_weights: Tensor | None
    max_length: int | None
    vector_width: int | None


def balanced_weights(labels: Sequence[str], given: Iterable[str]) -> Tensor:
    """Weight of each label, (L,): inverse to how often it is given, with the mean 1 over texts."""
    counts = Counter(given)
    numbers = torch.tensor([float(counts[label]) for label in labels])
    return numbers.sum() / (len(labels) * numbers.clamp(min=1))


def check_labels(labels: Sequence[str], weights: Tensor | None) -> None:
    """Refuse labels, and weights of them, that no training has.

    Raises:
        InputError: if labels are repeated or missing, or weights are not one for each, above 0.
    """
    if len(set(labels)) < max(1, len(labels)):
        raise InputError(f"labels must be one or more, all different, got {labels!r:.60}")
    if weights is None:
        return
    if weights.shape != (len(labels),) or not weights.is_floating_point():
        found = f"{weights.dtype} of shape {tuple(weights.shape)}"
        raise InputError(f"label_weights must be {len(labels)} floating-point numbers, got {found}")
    if not (weights.isfinite() & (weights > 0)).all():
        raise InputError(f"label_weights must be finite and above 0, got {weights.tolist()!r:.60}")
