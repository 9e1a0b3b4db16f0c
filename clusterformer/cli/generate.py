"""`clusterformer generate`: continue a text with a trained language model."""

from __future__ import annotations

from itertools import chain
from typing import Any

HELP = """
usage: clusterformer generate --checkpoint RUN [--prompt TEXT] [options]

Continue a text with a trained language model. Characters are printed as they are drawn.
No data set is needed, only the checkpoint.

  --checkpoint RUN   run directory (its best checkpoint), or a .ckpt file
  --average N        mean of the weights after the last N validations, or best:N
  --prompt TEXT      beginning of the text; printed too (default: none)
  --tokens 200       maximum number of tokens to draw
  --temperature 1.0  below 1 for more probable text, above 1 for more surprising text; 0 always
                     takes the most probable token
  --top_p 1.0        draw only from the most probable tokens that have this probability together
  --top_k 40         draw only from the 40 most probable tokens (default: all)
  --stop TEXT        end before this text
  --samples 3        several continuations, one after the other
  --seed 0           seed of the draws: the same seed gives the same text
  --device cpu       cpu, cuda or cuda:1 (default: cuda if there is one)
  --trust PACKAGE    allow the checkpoint to import a class of that package

examples:
  clusterformer generate --checkpoint runs/wikitext2/1 --prompt "The film was"
  clusterformer generate --checkpoint runs/books/1 --tokens 2000 --temperature 0.8 --top_p 0.95
"""


_NUMBERS: dict[str, type[float]] = {
    "tokens": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "seed": int,
}
"""Options that are numbers, and their types."""


def run(arguments: list[str]) -> None:
    """Print the prompt and its continuation."""
    from clusterformer.cli.evaluation import load_model
    from clusterformer.cli.options import pop_number, pop_option
    from clusterformer.generation import Sampling

    prompt, arguments = pop_option(arguments, "--prompt", may_be_empty=True)
    samples, arguments = pop_number(arguments, "--samples", int)
    given: dict[str, Any] = {}
    given["stop"], arguments = pop_option(arguments, "--stop")
    for name, kind in _NUMBERS.items():
        given[name], arguments = pop_number(arguments, f"--{name}", kind)
    model, _ = load_model(arguments)
    continuations = model.generator.samples(
        prompt or "",
        Sampling(**{name: value for name, value in given.items() if value is not None}),
        number=1 if samples is None else samples,
    )
    for number, continuation in enumerate(continuations, start=1):
        if samples is not None and samples > 1:
            print(f"--- sample {number}")
        for text in chain([prompt or ""], continuation):
            print(text, end="", flush=True)
        print()
