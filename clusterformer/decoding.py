"""Decoding of texts by a network, token by token: greedy, drawn, or by beam search.

B batch of texts   V vocabulary

The rows of a state are hypotheses: B * beam of them, those of a text one after the other.

Each search takes `step(tokens (rows,), state) -> (logits (rows, V), state)` and the state before
the first token, as any network with `start` and `step` gives them. A finished text leaves the
batch. Padding, token 0, is never chosen, and no text is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clusterformer.errors import InputError, require_number, require_whole
from clusterformer.models.decoder import State
from clusterformer.models.embeddings import PAD

Step = Callable[[Tensor, State], tuple[Tensor, State]]


class Hypothesis(NamedTuple):
    """A decoded text.

    Attributes:
        tokens: Tokens without the end mark.
        score: Log-probability, end mark included; in beam search divided by the length penalty.
    """

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Search:
    """Options of decoding.

    Attributes:
        beam: Number of hypotheses followed for each text; 1 is greedy.
        length_penalty: Exponent of the length, -10 to 10; above 1 favours long texts, below 1 short
            ones.
        nbest: Number of hypotheses returned for each text, at most `beam`.

    Raises:
        InputError: for a number out of range.
    """

    beam: int = 5
    length_penalty: float = 1.0
    nbest: int = 1

    def __post_init__(self) -> None:
        require_number(beam=self.beam, nbest=self.nbest, length_penalty=self.length_penalty)
        require_whole(1, beam=self.beam, nbest=self.nbest)
        if self.nbest > self.beam:
            raise InputError(f"nbest must be at most beam ({self.beam}), got {self.nbest}")
        if not -10 <= self.length_penalty <= 10:
            raise InputError(f"length_penalty must be from -10 to 10, got {self.length_penalty}")


@torch.inference_mode()
def decode(
    step: Step,
    state: State,
    first: Tensor,
    search: Search,
    *,
    eos: int,
    max_length: int | Tensor,
) -> list[list[Hypothesis]]:
    """Find the best texts, greedily or by beam search: arguments and result of `beam_search`."""
    if search.beam == 1:
        return [[one] for one in greedy(step, state, first, eos=eos, max_length=max_length)]
    return beam_search(step, state, first, search, eos=eos, max_length=max_length)


@torch.inference_mode()
def greedy(
    step: Step, state: State, first: Tensor, *, eos: int, max_length: int | Tensor
) -> list[Hypothesis]:
    """Take the likeliest token at every step.

    Args:
        step: Step function of the network.
        state: State before the first token, one row a text.
        first: (B,), token that each text's decoder reads first.
        eos: End mark.
        max_length: Maximum number of tokens before the end mark, at least 1; one number or (B,).

    Returns:
        One hypothesis a text.
    """
    count, tokens = len(first), first
    limits = _limits(max_length, first)
    texts = torch.arange(count, device=first.device)  # text of each row
    history: list[Tensor] = []
    total = torch.zeros(count, device=first.device)
    found: dict[int, Hypothesis] = {}
    while True:
        logits, state = step(tokens, state)
        scores = _scores(logits, limits, len(history), eos)
        tokens = scores.argmax(-1)
        total = total + scores.gather(-1, tokens[:, None])[:, 0]
        done = tokens == eos
        if done.any():
            past = torch.stack(history, 1)
            for row in done.nonzero()[:, 0].tolist():
                found[int(texts[row])] = Hypothesis(past[row].tolist(), float(total[row]))
            if len(found) == count:
                return [found[text] for text in range(count)]
            kept = (~done).nonzero()[:, 0]
            state = state.select(kept, kept)
            tokens, total, limits, texts = tokens[kept], total[kept], limits[kept], texts[kept]
            history = list(past[kept].unbind(1))
        history.append(tokens)


def draw(
    scores: Tensor,
    temperature: float,
    top_p: float,
    generator: torch.Generator | None = None,
    *,
    top_k: int | None = None,
) -> Tensor:
    """Draw a token a row (rows,) from softmax(scores / temperature), cut to its nucleus.

    Args:
        scores: Log-probabilities or logits, (rows, V).
        temperature: Divisor, above 0; below 1 sharpens, above 1 flattens.
        top_p: Probability, above 0 and at most 1, of the nucleus (Holtzman et al., 2020): the
            likeliest tokens that together have it.
        generator: Source of the random numbers.
        top_k: Maximum number of tokens to draw from, the likeliest.
    """
    gaps = scores - scores.amax(-1, keepdim=True)  # at most 0: no temperature overflows
    limits = torch.finfo(scores.dtype)
    divisor = min(max(temperature, limits.tiny), limits.max)
    likeliest, order = (gaps / divisor).softmax(-1).sort(-1, descending=True)
    # the token that crosses top_p still belongs to the nucleus
    nucleus = likeliest.masked_fill(likeliest.cumsum(-1) - likeliest >= top_p, 0.0)
    if top_k is not None:
        nucleus[:, top_k:] = 0.0
    return order.gather(-1, nucleus.multinomial(1, generator=generator))[:, 0]


@torch.inference_mode()
def beam_search(
    step: Step,
    state: State,
    first: Tensor,
    search: Search,
    *,
    eos: int,
    max_length: int | Tensor,
) -> list[list[Hypothesis]]:
    """Search for the best texts among `beam` hypotheses for each, extended side by side.

    Score of a hypothesis, as in fairseq: log-probability / length ** length_penalty, the end mark
    counted: a penalty of 0 compares log-probabilities, which favours short texts, one of 1 their
    mean over tokens. A text is done when `beam` hypotheses have ended, or when `nbest` have and no
    live one can still beat them: log-probabilities only fall, so a live one reaches at most its own
    divided by the largest divisor it may get.

    Args:
        step: Step function of the network.
        state: State before the first token, one row a text.
        first: (B,), token that each text's decoder reads first.
        search: Options.
        eos: End mark.
        max_length: Maximum number of tokens before the end mark, at least 1; one number or (B,).

    Returns:
        For each text `nbest` hypotheses, best first; fewer if there are no more.
    """
    beam, length_penalty, nbest = search.beam, search.length_penalty, search.nbest
    count, device = len(first), first.device
    limits = _limits(max_length, first)
    ended: list[list[Hypothesis]] = [[] for _ in range(count)]
    texts = list(range(count))  # those that are not done
    state = state.select(torch.arange(count, device=device).repeat_interleave(beam))
    tokens = first.repeat_interleave(beam).view(-1, beam)  # (B, beam), as total and parents
    history = tokens[..., None][..., :0]  # (B, beam, tokens so far)
    total = torch.full(tokens.shape, float("-inf"), device=device)
    total[:, 0] = 0.0  # before the first step all hypotheses of a text are one
    for length in range(int(limits.max()) + 1):
        logits, state = step(tokens.flatten(), state)
        scores = _scores(logits, limits.repeat_interleave(beam), length, eos)
        candidates = (total[..., None] + scores.view(*total.shape, -1)).flatten(1)  # (B, beam * V)
        # one candidate of each hypothesis ends it, so at least half of these continue
        best, index = candidates.topk(min(2 * beam, candidates.shape[1]))
        parents, tokens = index // scores.shape[-1], index % scores.shape[-1]
        ends = tokens == eos
        for row, rank in (ends & best.isfinite())[:, :beam].nonzero().tolist():
            past = history[row, parents[row, rank]].tolist()
            score = float(best[row, rank]) / (length + 1.0) ** length_penalty
            ended[texts[row]].append(Hypothesis(past, score))
        total, live_rank = best.masked_fill(ends, float("-inf")).topk(beam)
        parents, tokens, total = _keep_rows(
            parents.gather(1, live_rank), tokens.gather(1, live_rank), total
        )

        longest = (
            limits + 1.0
            if length_penalty > 0
            else torch.full_like(limits, length + 2, dtype=torch.float)
        )
        reachable = (total.amax(1) / longest.pow(length_penalty)).tolist()
        live = [
            row
            for row, text in enumerate(texts)
            if not _is_done(ended[text], reachable[row], beam, nbest)
        ]
        if not live:
            break
        history = torch.cat([history.take_along_dim(parents[..., None], 1), tokens[..., None]], -1)
        sources = beam * torch.arange(len(texts), device=device)[:, None] + parents
        if len(live) < len(texts):
            kept = torch.tensor(live, device=device)
            state = state.select(sources[kept].flatten(), kept)
            history, tokens, total, limits = (x[kept] for x in (history, tokens, total, limits))
            texts = [texts[row] for row in live]
        else:
            rows = torch.arange(sources.numel(), device=device)
            moved = (sources.flatten() != rows).nonzero()[:, 0]
            state.overwrite(moved, sources.flatten()[moved])
    return [sorted(found, key=lambda one: -one.score)[:nbest] for found in ended]


def _is_done(ended: list[Hypothesis], reachable: float, beam: int, nbest: int) -> bool:
    """Tell whether a text is done, if no live hypothesis can get a score above `reachable`."""
    if len(ended) >= beam or reachable == float("-inf"):
        return True
    scores = sorted((one.score for one in ended), reverse=True)
    return len(scores) >= nbest and scores[nbest - 1] >= reachable


def _keep_rows(parents: Tensor, tokens: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Order the hypotheses (B, beam) so that one child of each parent keeps the parent's row.

    A network's state is then copied for the other children only, into rows that no child kept.
    """
    beam = parents.shape[1]
    same = parents[:, :, None] == parents[:, None, :]
    eldest = ~same.tril(-1).any(-1)  # first child of its parent
    vacant = torch.ones_like(eldest).scatter_(1, parents, value=False)
    free = vacant.long().argsort(dim=1, descending=True, stable=True)  # vacant rows first
    rank = (~eldest).long().cumsum(1).sub(1).clamp(0, beam - 1)
    rows = torch.where(eldest, parents, free.gather(1, rank))
    parents, tokens, total = (
        torch.empty_like(x).scatter_(1, rows, x) for x in (parents, tokens, total)
    )
    return parents, tokens, total


def _limits(max_length: int | Tensor, first: Tensor) -> Tensor:
    limits = torch.as_tensor(max_length, device=first.device).expand(first.shape)
    if limits.min() < 1:
        raise ValueError(f"max_length must be at least 1, got {int(limits.min())}")
    return limits


def _scores(logits: Tensor, limits: Tensor, length: int, eos: int) -> Tensor:
    """Log-probabilities (rows, V) after `length` tokens, -inf for tokens not allowed now."""
    scores = logits.float().log_softmax(-1)
    scores[:, PAD] = float("-inf")
    if length == 0:
        scores[:, eos] = float("-inf")
    if (late := limits <= length).any():
        end = scores[:, eos].clone()
        scores[late] = float("-inf")
        scores[:, eos] = end
    return scores
