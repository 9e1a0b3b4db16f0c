"""Warnings of own examples that can be read, but say something else than their owner believes."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from clusterformer.data.labelled_text import Example
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


@rank_zero_only
def warn_of_known(
    split: str, what: str, measured: Sequence[Hashable], training: Iterable[Hashable]
) -> None:
    """Warn of examples that are in the training part too: a measure of them is no fair one.

    Args:
        split: Part of the data that has a file of its own.
        what: Name of its examples, such as "texts".
        measured: What makes each of its examples the same as another one.
        training: Likewise of the training part, read once as a stream.
    """
    wanted = set(measured)
    known = {key for key in training if key in wanted}
    count = sum(key in known for key in measured)
    if count > _LEAST_SHARED * len(measured):
        _warn(
            f"{split}: {count:,} of {len(measured):,} {what} are in the training part too, and a "
            "model that was trained on them is not measured fairly"
        )


def _warn(message: str) -> None:
    rank_zero_only(_log.warning)(message)
