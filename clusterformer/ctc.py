"""Connectionist temporal classification (Graves et al., 2006): loss, decoding, times.

B batch   N frames   V units and the blank, which is 0   U units of a text
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.losses import IGNORE

BLANK = 0


def ctc_loss(logits: Tensor, mask: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the negative log-likelihoods of transcripts, in nats, and count their units.

    A transcript that is too long for its frames is left out of both.

    Args:
        logits: (B, N, V).
        mask: (B, N), True at real frames, which come first in their row.
        target: (B, U) units from 1, IGNORE behind the last.
    """
    log_probs = logits.float().log_softmax(-1).transpose(0, 1)  # (N, B, V)
    real = target != IGNORE
    frames, lengths = mask.sum(-1), real.sum(-1)
    repeated = (target[:, 1:] == target[:, :-1]) & real[:, 1:]
    possible = (frames >= lengths + repeated.sum(-1)) & (lengths > 0)
    losses = F.ctc_loss(
        log_probs,
        target.masked_fill(~real, BLANK),
        frames,
        lengths,
        blank=BLANK,
        reduction="none",
        zero_infinity=True,
    )
    return (losses * possible).sum(), (lengths * possible).sum()


class Transcript(NamedTuple):
    """Units that are recognised in a recording.

    Attributes:
        units: Their numbers, U of them.
        frames: First frame of each, and the frame behind its last.
        score: Log-probability: of the path if greedy, of all paths in a beam.
    """

    units: list[int]
    frames: list[tuple[int, int]]
    score: float


def best_path(log_probs: Tensor) -> Transcript:
    """Take the most probable unit of every frame; repetitions and blanks drop out.

    Args:
        log_probs: (N, V) of one recording.
    """
    best = log_probs.max(-1)
    units, counts = torch.unique_consecutive(best.indices, return_counts=True)
    ends = counts.cumsum(0)
    runs = zip(units.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True)
    kept = [(unit, (first, end)) for unit, first, end in runs if unit != BLANK]
    return Transcript(
        [unit for unit, _ in kept], [frames for _, frames in kept], float(best.values.sum())
    )


def cut_at_blanks(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Move the cuts between the parts of a long recording to where a blank is most certain.

    There what comes before and after can be decoded by itself; a part grows to twice its length at
    most.

    Args:
        parts: Log-probabilities (N, V) of successive stretches.
    """
    rest = None
    for part in parts:
        if rest is None:
            rest = part
            continue
        half = len(rest) // 2
        cut = half + int(rest[half:, BLANK].argmax()) if len(rest) else 0
        yield rest[:cut]
        rest = torch.cat([rest[cut:], part])
    if rest is not None:
        yield rest


def joined(parts: Iterable[tuple[int, Transcript]]) -> Transcript:
    """Join what is recognised in the successive stretches of one recording.

    A unit that ends one stretch and begins the next was cut in two, and is one again.

    Args:
        parts: For each stretch its number of frames, and its units.
    """
    units: list[int] = []
    frames: list[tuple[int, int]] = []
    score, before = 0.0, 0  # frames of the stretches before
    for length, part in parts:
        found = [(first + before, end + before) for first, end in part.frames]
        goes_on = bool(units and found and frames[-1][1] == found[0][0] == before)
        if goes_on and units[-1] == part.units[0]:
            frames[-1] = frames[-1][0], found.pop(0)[1]
        units += part.units[len(part.units) - len(found) :]
        frames += found
        score, before = score + part.score, before + length
    return Transcript(units, frames, score)


def prefix_beam(log_probs: Tensor, beam: int) -> Transcript:
    """Search the units of largest probability over all their paths (Hannun et al., 2014).

    With a beam as large as the number of texts that are possible, the search is exact.

    Args:
        log_probs: (N, V) of one recording.
        beam: Number of beginnings that are followed, and of units that may continue each.

    Returns:
        The units, with the frames of their most probable path.
    """
    ending: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}  # blank, unit
    top = log_probs.topk(min(beam + 1, log_probs.shape[-1]))
    for row, values, indices in zip(
        log_probs.tolist(), top.values.tolist(), top.indices.tolist(), strict=True
    ):
        found: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [-math.inf, -math.inf])
        for prefix, (blank, unit) in ending.items():
            both = _add(blank, unit)
            same = found[prefix]
            same[0] = _add(same[0], both + row[BLANK])
            if prefix:
                same[1] = _add(same[1], unit + row[prefix[-1]])
            for value, index in zip(values, indices, strict=True):
                if index == BLANK:
                    continue
                before = blank if prefix and prefix[-1] == index else both
                longer = (*prefix, index)
                found[longer][1] = _add(found[longer][1], before + value)
        best = sorted(found.items(), key=lambda item: _add(*item[1]), reverse=True)[:beam]
        ending = {prefix: (blank, unit) for prefix, (blank, unit) in best}
    units, ends = next(iter(ending.items()))
    return Transcript(list(units), align(log_probs, list(units)), _add(*ends))


def _add(first: float, second: float) -> float:
    """Add two probabilities given by their logarithms."""
    high, low = max(first, second), min(first, second)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def align(log_probs: Tensor, units: list[int]) -> list[tuple[int, int]]:
    """Find the frames of units on their most probable path (Viterbi).

    Args:
        log_probs: (N, V) of one recording.
        units: Numbers of the units, which CTC must be able to write in N frames.

    Returns:
        For each unit its first frame, and the frame behind its last.
    """
    if not units:
        return []
    states = torch.full((2 * len(units) + 1,), BLANK)  # blanks around all units
    states[1::2] = torch.tensor(units)
    scores = log_probs.double().cpu()[:, states]  # (N, 2 U + 1)
    skips = torch.zeros_like(states, dtype=torch.bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    best = torch.full_like(scores[0], -math.inf)
    best[:2] = scores[0, :2]
    came = torch.zeros(scores.shape, dtype=torch.long)  # states that each was reached across
    for frame in range(1, len(scores)):
        one, two = (F.pad(best, (step, 0), value=-math.inf)[: len(best)] for step in (1, 2))
        options = torch.stack([best, one, two.masked_fill(~skips, -math.inf)])
        best, came[frame] = options.max(0)
        best = best + scores[frame]
    state = len(best) - 1 - int(best[-2] > best[-1])
    path = [state]
    for frame in range(len(scores) - 1, 0, -1):
        state -= int(came[frame, state])
        path.append(state)
    path.reverse()
    return [
        (path.index(state), len(path) - path[::-1].index(state))
        for state in range(1, len(states), 2)
    ]
