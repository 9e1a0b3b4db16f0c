"""Decoding of texts by a network, token by token: greedy, sampled, or by beam search.

B batch of texts   V vocabulary

The rows of a state are hypotheses: B * beam of them, those of a text one after the other.

Each function takes `step(tokens (rows,), state) -> (logits (rows, V), state)` and the state before
the first token, as any network with `start` and `step` gives them. A finished text leaves the
batch. Padding, token 0, is never chosen, and no text is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clusterformer.errors import InputError, require_at_least
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
        require_at_least(1, beam=self.beam, nbest=self.nbest)
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
    """Find the best texts, greedily or by beam search; the arguments are those of `beam_search`.

    Returns:
        For each text `search.nbest` hypotheses, best first; fewer if there are no more.
    """
    if search.beam == 1:
        return [[one] for one in greedy(step, state, first, eos=eos, max_length=max_length)]
    return beam_search(
        step,
        state,
        first,
        eos=eos,
        max_length=max_length,
        beam=search.beam,
        length_penalty=search.length_penalty,
        nbest=search.nbest,
    )


@torch.inference_mode()
def greedy(
    step: Step, state: State, first: Tensor, *, eos: int | None, max_length: int | Tensor
) -> list[Hypothesis]:
    """Take the likeliest token at every step.

    Args:
        step: Step function of the network.
        state: State before the first token, one row a text.
        first: (B,), token that each text's decoder reads first.
        eos: End mark; None if texts have none and all get `max_length` tokens.
        max_length: Maximum number of tokens before the end mark, at least 1; one number or (B,).

    Returns:
        One hypothesis a text.
    """
    return _unroll(step, state, first, eos, max_length, lambda scores: scores.argmax(-1))


@torch.inference_mode()
def sample(
    step: Step,
    state: State,
    first: Tensor,
    *,
    eos: int | None,
    max_length: int | Tensor,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> list[Hypothesis]:
    """Draw tokens from softmax(logits / temperature), cut to its nucleus (Holtzman et al., 2020).

    Args:
        step: Step function of the network.
        state: State before the first token, one row a text.
        first: (B,), token that each text's decoder reads first.
        eos: End mark; None if texts have none and all get `max_length` tokens.
        max_length: Maximum number of tokens before the end mark, at least 1; one number or (B,).
        temperature: Divisor of the logits, above 0; below 1 sharpens, above 1 flattens.
        top_p: Probability, above 0 and at most 1, of the nucleus: the likeliest tokens that
            together have it.
        generator: Source of the random numbers.

    Returns:
        One hypothesis a text; scores are log-probabilities of the network, before temperature.
    """
    return _unroll(
        step, state, first, eos, max_length, lambda x: draw(x, temperature, top_p, generator)
    )


def draw(
    scores: Tensor,
    temperature: float,
    top_p: float,
    generator: torch.Generator | None = None,
    *,
    top_k: int | None = None,
) -> Tensor:
    """Draw a token a row (rows,) from log-probabilities or logits (rows, V), as `sample` does."""
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}; near 0 use greedy")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    gaps = scores - scores.amax(-1, keepdim=True)  # at most 0: no temperature overflows
    divisor = max(temperature, torch.finfo(scores.dtype).tiny)
    likeliest, order = (gaps / divisor).softmax(-1).sort(-1, descending=True)
    # the token that crosses top_p still belongs to the nucleus
    nucleus = likeliest.masked_fill(likeliest.cumsum(-1) - likeliest >= top_p, 0.0)
    if top_k is not None:
        nucleus[:, top_k:] = 0.0
    return order.gather(-1, nucleus.multinomial(1, generator=generator))[:, 0]


def _unroll(
    step: Step,
    state: State,
    first: Tensor,
    eos: int | None,
    max_length: int | Tensor,
    choose: Callable[[Tensor], Tensor],
) -> list[Hypothesis]:
    """Follow one hypothesis a text; `choose` maps log-probabilities (rows, V) to tokens (rows,)."""
    count, tokens = len(first), first
    limits = _limits(max_length, first)
    texts = torch.arange(count, device=first.device)  # text of each row
    history: list[Tensor] = []
    total = torch.zeros(count, device=first.device)
    found: dict[int, Hypothesis] = {}
    while True:
        logits, state = step(tokens, state)
        scores = _scores(logits, limits, len(history), eos)
        tokens = choose(scores)
        total = total + scores.gather(-1, tokens[:, None])[:, 0]
        if eos is None:
            history.append(tokens)
            done = limits == len(history)
        else:
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
        if eos is not None:
            history.append(tokens)


@torch.inference_mode()
def beam_search(
    step: Step,
    state: State,
    first: Tensor,
    *,
    eos: int,
    max_length: int | Tensor,
    beam: int = 5,
    length_penalty: float = 1.0,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """Search for the best texts among `beam` hypotheses for each, extended side by side.

    Score of a hypothesis, as in fairseq: log-probability / length ** length_penalty, the end mark
    counted. A text is done when `beam` hypotheses have ended, or when `nbest` have and no live one
    can still beat them: log-probabilities only fall, so a live one reaches at most its own divided
    by the largest divisor it may get.

    Args:
        step: Step function of the network.
        state: State before the first token, one row a text.
        first: (B,), token that each text's decoder reads first.
        eos: End mark.
        max_length: Maximum number of tokens before the end mark, at least 1; one number or (B,).
        beam: Number of hypotheses for each text.
        length_penalty: Exponent of the length: 0 compares log-probabilities, which favours short
            texts; 1 compares their mean over tokens.
        nbest: Number of hypotheses to return, at most `beam`.

    Returns:
        For each text `nbest` hypotheses, best first; fewer if there are no more.
    """
    if not 1 <= nbest <= beam:
        raise ValueError(f"nbest must be in 1..beam, got {nbest} with beam = {beam}")
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


def _scores(logits: Tensor, limits: Tensor, length: int, eos: int | None) -> Tensor:
    """Log-probabilities (rows, V) after `length` tokens, -inf for tokens not allowed now."""
    scores = logits.float().log_softmax(-1)
    scores[:, PAD] = float("-inf")
    if eos is not None:
        if length == 0:
            scores[:, eos] = float("-inf")
        if (late := limits <= length).any():
            end = scores[:, eos].clone()
            scores[late] = float("-inf")
            scores[:, eos] = end
    return scores
