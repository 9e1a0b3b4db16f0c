"""`clusterformer generate`: go on with a text, as a trained language model would."""

from __future__ import annotations

from itertools import chain

HELP = """
usage: clusterformer generate --checkpoint RUN [--prompt TEXT] [options]

Go on with a text as a trained language model would, character by character as they are drawn.
The checkpoint is all it needs.

  --checkpoint RUN   run folder (its best checkpoint), or a .ckpt file
  --prompt TEXT      beginning of the text; printed too (default: none)
  --tokens 200       most tokens to draw
  --temperature 1.0  below 1 likelier text, above 1 more surprising; 0 always the likeliest token
  --top_p 1.0        draw only from the likeliest tokens that together have this probability
  --seed 0           of the drawing: the same seed gives the same text
  --device cpu       cpu or cuda (default: cuda where there is one)

examples:
  clusterformer generate --checkpoint runs/wikitext2/1 --prompt "The film was"
  clusterformer generate --checkpoint runs/books/1 --tokens 2000 --temperature 0.8 --top_p 0.95
"""


def run(arguments: list[str]) -> None:
    """Print the prompt and its continuation."""
    from clusterformer.cli.evaluation import load_model
    from clusterformer.cli.options import pop_number, pop_option

    prompt, arguments = pop_option(arguments, "--prompt")
    tokens, arguments = pop_number(arguments, "--tokens", int)
    temperature, arguments = pop_number(arguments, "--temperature", float)
    top_p, arguments = pop_number(arguments, "--top_p", float)
    seed, arguments = pop_number(arguments, "--seed", int)
    model, _ = load_model(arguments)
    continuation = model.stream(
        prompt or "",
        tokens=200 if tokens is None else tokens,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        seed=seed or 0,
    )
    for text in chain([prompt or ""], continuation):
        print(text, end="", flush=True)
    print()
