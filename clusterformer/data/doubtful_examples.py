"""Warnings of own examples that can be read, but say something else than their owner believes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.bitext import SentencePair
from clusterformer.data.labelled_text import Example
from clusterformer.data.named_sets import Split
from clusterformer.data.tables import table_format

_log = logging.getLogger(__name__)

_LEAST_SHARED = 0.01  # of the examples of a part, from which it is told


def warn_of_header(file: str, training: Sequence[Example]) -> None:
    """Warn that the first line of a file may be its header, though it is read as an example.

    Its label is then one that no other line has.

    Args:
        file: Own training file.
        training: All of its examples.
    """
    first = training[0]
    is_line = first.where.endswith(":1") and table_format(Path(file)) != ".jsonl"
    if is_line and all(example.label != first.label for example in training[1:]):
        _warn(
            f"{first.where}: read as an example, the only one of label {first.label!r:.60}; if it "
            "is a header line, set data.header true"
        )


def warn_of_known(split: str, examples: Sequence[Example], training: Sequence[Example]) -> None:
    """Warn of texts that are in the training part too: a measure of them is no fair one.

    Args:
        split: Part of the data that has a file of its own.
        examples: Its examples.
        training: Those of the training part.
    """
    known = {example.texts for example in training}
    _tell_known(split, "texts", sum(example.texts in known for example in examples), len(examples))


@rank_zero_only
def warn_of_known_pairs(
    split: Split, pairs: Iterable[SentencePair], training: Iterable[SentencePair]
) -> None:
    """Warn of sentences that are in the training part too, with the same translations.

    Args:
        split: Part of the data that has files of its own.
        pairs: Its pairs.
        training: Those of the training part, read once as a stream.
    """
    measured = [_sides(pair) for pair in pairs]
    wanted = set(measured)
    known = {sides for sides in map(_sides, training) if sides in wanted}
    _tell_known(split, "pairs", sum(sides in known for sides in measured), len(measured))


def _sides(pair: SentencePair) -> tuple[str, str]:
    return pair.source.strip(), pair.target.strip()


def _tell_known(split: str, what: str, count: int, total: int) -> None:
    if count > _LEAST_SHARED * total:
        _warn(
            f"{split}: {count:,} of {total:,} {what} are in the training part too, so the model is "
            "measured on what it was trained on"
        )


def _warn(message: str) -> None:
    rank_zero_only(_log.warning)(message)
