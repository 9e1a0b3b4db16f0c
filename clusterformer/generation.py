"""Text out of a trained language model, as it is drawn."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from clusterformer.data.batches import PAD
from clusterformer.data.stream_tokenizers import StreamTokenizer
from clusterformer.data.tokenizers import BOS
from clusterformer.decoding import draw
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.language_model import LanguageModel


@dataclass(frozen=True)
class TextGenerator:
    """Goes on with a text.

    Attributes:
        network: Of the language model.
        tokenizer: Its tokenizer.
    """

    network: LanguageModel
    tokenizer: StreamTokenizer

    def stream(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Iterator[str]:
        """What follows `prompt`, piece by piece, whole characters only.

        Every token, those of the prompt too, is one step with cached keys and values. The text
        may end before `tokens` where the model was trained on many texts.

        Args:
            prompt: Beginning of the text.
            tokens: Most tokens to draw.
            temperature: Divides the logits; 0 always takes the likeliest token.
            top_p: In (0, 1]: draw only from the likeliest tokens that together have this
                probability.
            seed: Of the drawing.

        Raises:
            InputError: for options out of range, or a text longer than learned positions reach.
        """
        require_at_least(1, tokens=tokens)
        characters = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            for token in self._draw(prompt, tokens, temperature, top_p, seed):
                if piece := characters.decode(self.tokenizer.token_bytes[token]):
                    yield piece
        except ValueError as error:
            raise InputError(str(error)) from error
        if rest := characters.decode(b"", final=True):
            yield rest

    @torch.inference_mode()
    def _draw(
        self, prompt: str, tokens: int, temperature: float, top_p: float, seed: int
    ) -> Iterator[int]:
        device = self.network.embedding.tokens.weight.device
        random = torch.Generator(device).manual_seed(seed)
        state = self.network.start()
        for token in [BOS, *self.tokenizer.encode(prompt)]:
            logits, state = self.network.step(torch.tensor([token], device=device), state)
        for drawn in range(1, tokens + 1):
            logits[:, PAD] = float("-inf")
            chosen = (
                draw(logits.float(), temperature, top_p, random)
                if temperature
                else logits.argmax(-1)
            )
            if chosen == BOS:
                return
            yield int(chosen)
            if drawn < tokens:
                logits, state = self.network.step(chosen, state)
