"""Natural language inference: whether one text follows from another, or contradicts it."""

from __future__ import annotations

from typing import Any

from clusterformer.data.corpora import InferenceCorpus
from clusterformer.tasks.pairs import PairLabelling


class Inference(PairLabelling):
    """Tell whether a hypothesis follows from a premise.

    Args:
        name: Named data set: snli, mnli (matched validates, mismatched tests), scitail, sick, rte
            or qnli (both test on their development part); without their training files snli-part
            (trains on the development set), mnli-part (on 3,000 pairs) or scitail-part (on eight
            tenths of the development set).
        options: Options of `PairLabelling`.
    """

    def __init__(self, name: InferenceCorpus | None = None, **options: Any) -> None:
        super().__init__(name, **options)
