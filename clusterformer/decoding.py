"""Texts out of a network, token by token: greedy, sampled, or by beam search.

B texts   K hypotheses a text (the beam)   R = B * K rows, those of a text in turn   V vocabulary

Each function takes `step(tokens (R,), state) -> (logits (R, V), state)` and the state before the
first token, as any network with `start` and `step` gives them. A text that is finished leaves the
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
        tokens: Without the end mark.
        score: Log-probability, end mark included; of beam search divided by its length penalty.
    """

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Search:
    """Options of decoding.

    Attributes:
        beam: Hypotheses followed for each text; 1 is greedy.
        length_penalty: Above 1 favours long texts, below 1 short ones.
        nbest: Hypotheses returned for each text, at most `beam`.

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


@torch.inference_mode()
def greedy(
    step: Step, state: State, first: Tensor, *, eos: int | None, longest: int | Tensor
) -> list[Hypothesis]:
    """The likeliest token at every step.

    Args:
        step: Of the network.
        state: Before the first token, one row a text.
        first: (B,), what each text's decoder reads first.
        eos: The end mark; None if texts have none and all are `longest`.
        longest: Most tokens of a text before its end mark, at least 1; one number or (B,).

    Returns:
        One hypothesis a text.
    """
    return _unroll(step, state, first, eos, longest, lambda scores: scores.argmax(-1))


@torch.inference_mode()
def sample(
    step: Step,
    state: State,
    first: Tensor,
    *,
    eos: int | None,
    longest: int | Tensor,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> list[Hypothesis]:
    """Tokens drawn from softmax(logits / temperature), cut to its nucleus (Holtzman et al., 2020).

    Args:
        step: As in `greedy`, likewise state, first, eos and longest.
        state: See there.
        first: See there.
        eos: See there.
        longest: See there.
        temperature: Above 0; below 1 sharpens, above 1 flattens.
        top_p: In (0, 1]: only the likeliest tokens that together have this probability are drawn.
        generator: Source of the random numbers.

    Returns:
        One hypothesis a text; scores are log-probabilities of the network, before temperature.
    """
    return _unroll(
        step, state, first, eos, longest, lambda x: draw(x, temperature, top_p, generator)
    )


def draw(
    scores: Tensor, temperature: float, top_p: float, generator: torch.Generator | None = None
) -> Tensor:
    """One token a row (R,), drawn from log-probabilities or logits (R, V) as `sample` does."""
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}; near 0 use greedy")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    likeliest, order = (scores / temperature).softmax(-1).sort(-1, descending=True)
    # the token that crosses top_p still belongs to the nucleus
    nucleus = likeliest.masked_fill(likeliest.cumsum(-1) - likeliest >= top_p, 0.0)
    return order.gather(-1, nucleus.multinomial(1, generator=generator))[:, 0]


def _unroll(
    step: Step,
    state: State,
    first: Tensor,
    eos: int | None,
    longest: int | Tensor,
    choose: Callable[[Tensor], Tensor],
) -> list[Hypothesis]:
    """Follow one hypothesis a text; `choose` picks tokens (R,) by log-probabilities (R, V)."""
    count, tokens = len(first), first
    limits = _limits(longest, first)
    texts = torch.arange(count, device=first.device)  # which text each row is
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
    longest: int | Tensor,
    beam: int = 5,
    length_penalty: float = 1.0,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """The best of what `beam` hypotheses a text, extended side by side, come to.

    Score of a hypothesis, as in fairseq: log-probability / length ** length_penalty, the end mark
    counted. A text is done when `beam` hypotheses have ended, or when `nbest` have and no live one
    can still beat them: log-probabilities only fall, so a live one reaches at most its own divided
    by the largest divisor it may get.

    Args:
        step: As in `greedy`, likewise state, first and longest.
        state: See there.
        first: See there.
        eos: The end mark.
        longest: See there.
        beam: K.
        length_penalty: 0 compares plain log-probabilities, which favours short texts; 1 compares
            means a token.
        nbest: Hypotheses to return, at most K.

    Returns:
        For each text `nbest` hypotheses, best first; fewer if there are no more.
    """
    if not 1 <= nbest <= beam:
        raise ValueError(f"nbest must be in 1..beam, got {nbest} with beam = {beam}")
    count, device = len(first), first.device
    limits = _limits(longest, first)
    ended: list[list[Hypothesis]] = [[] for _ in range(count)]
    texts = list(range(count))  # which of them stand in the batch
    state = state.select(torch.arange(count, device=device).repeat_interleave(beam))
    tokens = first.repeat_interleave(beam).view(-1, beam)  # (B, K), as total and parents
    history = tokens[..., None][..., :0]  # (B, K, tokens so far)
    total = torch.full(tokens.shape, float("-inf"), device=device)
    total[:, 0] = 0.0  # before the first step all hypotheses of a text are one
    for length in range(int(limits.max()) + 1):
        logits, state = step(tokens.flatten(), state)
        scores = _scores(logits, limits.repeat_interleave(beam), length, eos)
        candidates = (total[..., None] + scores.view(*total.shape, -1)).flatten(1)  # (B, K * V)
        # one candidate a hypothesis ends, so at least K of the best 2 K go on
        best, index = candidates.topk(min(2 * beam, candidates.shape[1]))
        parents, tokens = index // scores.shape[-1], index % scores.shape[-1]
        ends = tokens == eos
        for row, rank in (ends & best.isfinite())[:, :beam].nonzero().tolist():
            past = history[row, parents[row, rank]].tolist()
            score = float(best[row, rank]) / (length + 1) ** length_penalty
            ended[texts[row]].append(Hypothesis(past, score))
        total, going = best.masked_fill(ends, float("-inf")).topk(beam)
        parents, tokens, total = _settle(parents.gather(1, going), tokens.gather(1, going), total)

        most = limits + 1.0 if length_penalty > 0 else torch.full_like(limits, length + 2)
        reachable = (total.amax(1) / most.pow(length_penalty)).tolist()
        live = [
            row
            for row, text in enumerate(texts)
            if not _decided(ended[text], reachable[row], beam, nbest)
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


def _decided(ended: list[Hypothesis], reachable: float, beam: int, nbest: int) -> bool:
    """Whether a text is done, where the score of no live hypothesis can pass `reachable`."""
    if len(ended) >= beam or reachable == float("-inf"):
        return True
    scores = sorted((one.score for one in ended), reverse=True)
    return len(scores) >= nbest and scores[nbest - 1] >= reachable


def _settle(parents: Tensor, tokens: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Put one heir of each hypothesis in its parent's place, (B, K) each.

    What a network keeps is then copied for the other heirs only, into places that died out.
    """
    beam = parents.shape[1]
    same = parents[:, :, None] == parents[:, None, :]
    heir = ~same.tril(-1).any(-1)  # the first with its parent
    vacant = torch.ones_like(heir).scatter_(1, parents, value=False)
    free = vacant.long().argsort(dim=1, descending=True, stable=True)  # vacant places first
    rank = (~heir).long().cumsum(1).sub(1).clamp(0, beam - 1)
    places = torch.where(heir, parents, free.gather(1, rank))
    parents, tokens, total = (
        torch.empty_like(x).scatter_(1, places, x) for x in (parents, tokens, total)
    )
    return parents, tokens, total


def _limits(longest: int | Tensor, first: Tensor) -> Tensor:
    limits = torch.as_tensor(longest, device=first.device).expand(first.shape)
    if limits.min() < 1:
        raise ValueError(f"longest must be at least 1, got {int(limits.min())}")
    return limits


def _scores(logits: Tensor, limits: Tensor, length: int, eos: int | None) -> Tensor:
    """Log-probabilities (R, V) after `length` tokens, -inf for what may not come now."""
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
