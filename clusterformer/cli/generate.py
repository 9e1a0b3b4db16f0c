"""`clusterformer generate`: go on with a text, as a trained language model would."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.generation import TextGenerator

T = TypeVar("T", int, float)

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
    """Print the prompt and what follows it."""
    from clusterformer.cli.options import take

    given: dict[str, str | None] = {}
    for name in ("checkpoint", "prompt", "device", "tokens", "temperature", "top_p", "seed"):
        given[name], arguments = take(arguments, f"--{name}")
    if arguments:
        raise InputError(f"no option {arguments[0]}; clusterformer generate --help lists them")
    if given["checkpoint"] is None:
        raise InputError("give --checkpoint, a run folder or a .ckpt file")
    prompt = given["prompt"] or ""
    following = load(given["checkpoint"], given["device"]).stream(
        prompt,
        tokens=_number(given, "tokens", int, 200),
        temperature=_number(given, "temperature", float, 1.0),
        top_p=_number(given, "top_p", float, 1.0),
        seed=_number(given, "seed", int, 0),
    )
    for piece in chain([prompt], following):
        print(piece, end="", flush=True)
    print()


def load(checkpoint: str, device: str | None = None) -> TextGenerator:
    """A generator from a run folder or `.ckpt` file of a language model.

    Example:
        >>> generator = load("runs/wikitext2/1")
        >>> print("".join(generator.stream("The film was", temperature=0.8)))

    Args:
        checkpoint: The run folder (its best checkpoint) or file.
        device: "cpu" or "cuda"; None: cuda where there is one.

    Raises:
        InputError: for a checkpoint of another task, or as `checkpoints.read` does.
    """
    from clusterformer.cli import evaluation
    from clusterformer.generation import TextGenerator
    from clusterformer.models.language_model import LanguageModel
    from clusterformer.tasks.language_modeling import LanguageModeling

    trained = evaluation.load(["--checkpoint", checkpoint])
    task = trained.options.datamodule
    if not isinstance(task, LanguageModeling):
        raise InputError(
            f"{trained.path}: generate needs a language model (LanguageModeling), this was trained "
            f"on {type(task).__name__}"
        )
    network = evaluation.ready(trained, device).network
    assert isinstance(network, LanguageModel)
    return TextGenerator(network, task.tokenizer)


def _number(given: dict[str, str | None], name: str, kind: type[T], default: T) -> T:
    value = given[name]
    try:
        return default if value is None else kind(value)
    except ValueError:
        raise InputError(f"--{name} is a number ({kind.__name__}), got {value!r}") from None
