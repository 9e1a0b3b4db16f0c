"""Text out of a trained language model, as it is drawn."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clusterformer.data.stream_tokenizers import StreamTokenizer
from clusterformer.data.tokenizers import BOS
from clusterformer.decoding import draw
from clusterformer.errors import (
    InputError,
    require_at_least,
    require_number,
    require_unicode,
    require_whole,
)
from clusterformer.models.decoder import State
from clusterformer.models.embeddings import PAD
from clusterformer.models.language_model import LanguageModel


@dataclass(frozen=True)
class Sampling:
    """Options of drawing a text.

    Attributes:
        tokens: Maximum number of tokens to draw.
        temperature: Divisor of the logits; 0 always takes the most probable token.
        top_k: Number of the most probable tokens that are drawn from; None for all.
        top_p: Probability, in (0, 1], of the most probable tokens that are drawn from.
        stop: Text before which the continuation ends; None for none.
        seed: Seed of the draws.

    Raises:
        InputError: for an option out of range.
    """

    tokens: int = 200
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    stop: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_number(tokens=self.tokens, seed=self.seed)  # which None is not
        require_number(temperature=self.temperature, top_p=self.top_p)
        require_whole(1, tokens=self.tokens, top_k=self.top_k)
        require_whole(-(2**63), seed=self.seed)
        require_at_least(0, temperature=self.temperature)
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.stop is not None and not (isinstance(self.stop, str) and self.stop):
            raise InputError(f"stop must be a text of one character or more, got {self.stop!r:.80}")
        if self.seed >= 2**63:
            raise InputError(f"seed must be a number of 64 bits, got {self.seed}")

    def choose(self, logits: Tensor, random: torch.Generator) -> Tensor:
        """Draw a token a row (rows,) from `logits` (rows, V)."""
        if not self.temperature:
            return logits.argmax(-1)
        return draw(logits.float(), self.temperature, self.top_p, random, top_k=self.top_k)


@dataclass(frozen=True)
class TextGenerator:
    """Goes on with a text.

    Attributes:
        network: Network of the language model.
        tokenizer: Its tokenizer.
    """

    network: LanguageModel
    tokenizer: StreamTokenizer

    def stream(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """Continue `prompt`, some characters at a time, whole characters only.

        The text may end before `sampling.tokens` where the model was trained on many texts.

        Args:
            prompt: Beginning of the text; it is read at once.
            sampling: Options.

        Raises:
            InputError: for a text longer than learned positions reach.
        """
        for sample in self.samples(prompt, sampling, number=1):
            yield from sample

    def samples(self, prompt: str, sampling: Sampling, *, number: int) -> Iterator[Iterator[str]]:
        """Draw several continuations of `prompt`, which is read once.

        Args:
            prompt: Beginning of the text.
            sampling: Options.
            number: Number of continuations; the first is that of `stream`.

        Yields:
            Each continuation as an iterator, to be read to its end before the next one.

        Raises:
            InputError: as `stream`.
        """
        require_whole(1, samples=number)
        weight = self.network.embedding.tokens.weight
        random = torch.Generator(weight.device).manual_seed(sampling.seed)
        logits, state = self._read(prompt)
        row = torch.zeros(1, dtype=torch.long, device=weight.device)
        for sample in range(number):
            own = state.select(row) if sample < number - 1 else state
            text = self._characters(self._draw(logits, own, sampling, random))
            yield text if sampling.stop is None else _before(text, sampling.stop)

    @torch.inference_mode()
    def _read(self, prompt: str) -> tuple[Tensor, State]:
        if not isinstance(prompt, str):
            raise InputError(f"prompt must be a text, got {prompt!r:.80}")
        require_unicode(prompt)
        device = self.network.embedding.tokens.weight.device
        read = torch.tensor([[BOS, *self.tokenizer.encode(prompt)]], device=device)
        try:
            return self.network.prefill(read)
        except ValueError as error:
            raise InputError(str(error)) from error

    def _characters(self, tokens: Iterator[int]) -> Iterator[str]:
        characters = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            for token in tokens:
                if text := characters.decode(self.tokenizer.token_bytes[token]):
                    yield text
        except ValueError as error:
            raise InputError(str(error)) from error
        if rest := characters.decode(b"", final=True):
            yield rest

    def _draw(
        self, logits: Tensor, state: State, sampling: Sampling, random: torch.Generator
    ) -> Iterator[int]:
        for drawn in range(1, sampling.tokens + 1):
            logits = logits.clone()  # other samples start from the same ones
            logits[:, PAD] = float("-inf")
            chosen = sampling.choose(logits, random)
            if chosen == BOS:
                return
            yield int(chosen)
            if drawn < sampling.tokens:
                with torch.inference_mode():
                    logits, state = self.network.step(chosen, state)


def _before(text: Iterator[str], stop: str) -> Iterator[str]:
    """Yield what comes before `stop`; its possible beginnings are held back until they are not."""
    held = ""
    for part in text:
        held += part
        before, found, _ = held.partition(stop)
        if found:
            if before:
                yield before
            return
        size = next(
            n for n in range(min(len(stop) - 1, len(held)), -1, -1) if held.endswith(stop[:n])
        )
        if size < len(held):
            yield held[: len(held) - size]
            held = held[len(held) - size :]
    if held:
        yield held
