"""Parts of labelled examples that validate and test, where a set has no files for that.

Splits are the same for every seed of a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.labelled_text import Row, TextPair
from clusterformer.data.named_sets import Split
from clusterformer.errors import InputError

ExampleT = TypeVar("ExampleT")

TENTHS = 10
_MAX_LABELS = 100


def hold_out(rows: list[Row], split: Split, held_out: Sequence[Split] = ("valid",)) -> list[Row]:
    """Return one split of `rows`: about a tenth for each of `held_out`, the rest for training.

    Every split has nearly the same share of each label; a label of too few texts for that trains.
    No text of one split occurs in another; case, punctuation and spaces do not count.

    Raises:
        InputError: if there are too few different texts.
    """
    # an empty text is the same as no other
    keys = [plain_words(row.text) or number for number, row in enumerate(rows)]
    firsts: dict[str | int, str] = {}
    for key, row in zip(keys, rows, strict=True):
        firsts.setdefault(key, row.label)
    tenth_of = dict(zip(firsts, deal([*firsts.values()], TENTHS), strict=True))
    labels = [row.label for row in rows]
    tenths = _train_all_labels(keys, labels, [tenth_of[key] for key in keys], len(held_out))
    if rows and {*range(len(held_out))} - {*tenths}:
        raise InputError(
            f"{rows[0].where}: too few different texts, {len(firsts)} of {len(set(labels))} "
            f"labels, to hold some out to {' and '.join(held_out)}; give files for that"
        )
    return select(rows, tenths, split, held_out)


def hold_out_pairs(
    pairs: list[TextPair], split: Split, held_out: Sequence[Split], *, scored: bool = False
) -> list[TextPair]:
    """Return one split of `pairs`: about a tenth for each of `held_out`, the rest for training.

    No sentence of one split, be it the first or the second of its pair, occurs in another; case,
    punctuation and spaces do not count. The candidates of one question stay together as well.
    Training has every label, unless labels are numbers on a scale (`scored`).

    Raises:
        InputError: if the pairs are linked through their sentences into too few groups, or their
            labels are too rare.
    """
    if not held_out:
        return pairs
    groups = linked_groups(map(_links, pairs))
    if max(groups) + 1 <= len(held_out):
        raise InputError(
            f"{pairs[0].where}: shared texts link all pairs into {max(groups) + 1} groups, too few "
            f"to hold some out to {' and '.join(held_out)}; give files for that"
        )
    labels = [pair.label for pair in pairs]
    tenths = _deal_groups(groups, labels)
    if not scored:
        tenths = _train_all_labels(groups, labels, tenths, len(held_out))
    if {*range(len(held_out))} - {*tenths}:
        raise InputError(
            f"{pairs[0].where}: too few pairs of a label, {len(pairs)} of {len(set(labels))} "
            f"labels, to hold some out to {' and '.join(held_out)}; give files for that"
        )
    return select(pairs, tenths, split, held_out)


def _links(pair: TextPair) -> list[str]:
    """Name the sentences of a pair, and its question, by what makes them the same."""
    found = [f"text {plain}" for text in pair.texts if (plain := plain_words(text))]
    return [*found, f"question {pair.group}"] if pair.group else found


def plain_words(text: str) -> str:
    """Words of a text, without case, punctuation and spaces; a text without words as it is."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text


def linked_groups(examples: Iterable[Iterable[str]]) -> list[int]:
    """Number the groups of examples that share something, directly or through others.

    Args:
        examples: Names of all that an example may share with another one.

    Returns:
        The group of each example, from 0 in the order of their first examples.
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    firsts = []
    for number, names in enumerate(examples):
        first, *others = [*names] or [f"example {number}"]
        firsts.append(first)
        for other in others:
            parent[root(other)] = root(first)
    numbers: dict[str, int] = {}
    return [numbers.setdefault(root(first), len(numbers)) for first in firsts]


def _deal_groups(groups: Sequence[int], labels: Sequence[str]) -> list[int]:
    """Assign examples to parts, ten at most, those of a group to the same.

    Parts have nearly the same number of examples of each label, of `_MAX_LABELS` at most. Labels of
    too few groups for that do not count.
    """
    names, numbers = np.unique(np.asarray(labels), return_inverse=True)
    alike = np.zeros_like(numbers)
    if len(names) > _MAX_LABELS:  # scores rather than labels
        return _deal_evenly(groups, alike)
    parts = _deal_evenly(groups, numbers)
    if 2 * _smallest(parts) < len(parts) / TENTHS:
        others = _deal_evenly(groups, alike)
        if 2 * _smallest(parts) < _smallest(others):
            return others
    return parts


def _smallest(parts: list[int]) -> int:
    """Number of examples of the smallest part but the last, which trains."""
    return int(np.bincount(parts)[:-1].min())


def _deal_evenly(groups: Sequence[int], numbers: NDArray[np.integer]) -> list[int]:
    """Assign examples to parts by their groups and the numbers of their labels.

    Large groups go first, in random order among equals, each to the part that has the fewest of its
    labels; the largest goes to the last part, which trains.
    """
    counts = np.zeros((max(groups) + 1, int(numbers.max()) + 1), dtype=np.int64)
    np.add.at(counts, (np.asarray(groups), numbers), 1)
    filled = np.zeros((min(TENTHS, len(counts)), counts.shape[1]), dtype=np.int64)
    part_of = np.empty(len(counts), dtype=np.int64)
    shuffled = np.random.default_rng(0).permutation(len(counts))
    for group in shuffled[np.argsort(-counts[shuffled].sum(1), kind="stable")]:
        part = len(filled) - 1 - int((filled[::-1] @ counts[group]).argmin())
        part_of[group] = part
        filled[part] += counts[group]
    return part_of[np.asarray(groups)].tolist()


def _train_all_labels(
    groups: Sequence[str | int], labels: Sequence[str], tenths: list[int], num_held_out: int
) -> list[int]:
    """Move the groups of labels that no training example has to the last tenth, which trains."""
    pairs = zip(labels, tenths, strict=True)
    trained = {label for label, tenth in pairs if tenth >= num_held_out}
    moved = {g for g, label in zip(groups, labels, strict=True) if label not in trained}
    return [TENTHS - 1 if g in moved else t for g, t in zip(groups, tenths, strict=True)]


def select(
    examples: Sequence[ExampleT], tenths: list[int], split: Split, held_out: Sequence[Split]
) -> list[ExampleT]:
    """Choose the examples of a split: the first tenths are held out, the others train."""
    wanted = {held_out.index(split)} if split in held_out else set(range(len(held_out), TENTHS))
    return [example for example, tenth in zip(examples, tenths, strict=True) if tenth in wanted]


def deal(labels: Sequence[str], num_parts: int) -> list[int]:
    """Assign examples to parts at random, so that every part has the same share of each label.

    Returns:
        The part, 0..num_parts - 1, of each example: always the same for the same labels.
    """
    names = np.asarray(labels)
    shuffled = np.random.default_rng(0).permutation(len(names))
    by_label = shuffled[np.argsort(names[shuffled], kind="stable")]
    parts = np.empty(len(names), dtype=np.int64)
    parts[by_label] = np.arange(len(names)) % num_parts
    return parts.tolist()
