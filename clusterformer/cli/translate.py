"""`clusterformer translate`: text in, its translation out, line by line as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterformer.cli.predict import Predictor, answer
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.cli.evaluation import Trained

HELP = """
usage: clusterformer translate --checkpoint RUN [--input FILE] [options]

Translate text with a trained model: one sentence a line in, its translation out, as soon as it is
known. The checkpoint is all it needs; tokens are made and undone as the model was trained.

  --checkpoint RUN      run folder (its best checkpoint), or a .ckpt file
  --average N           the mean of the weights after the last N validations, or best:N
  --input FILE          sentences, UTF-8, one a line; a file or pipe (default: standard input)
  --beam 5              hypotheses followed; 1 takes the likeliest token at each step
  --nbest 1             translations of each sentence, a line each, best first
  --length_penalty 1.0  above 1 favours long translations, below 1 short ones
  --format text         translations alone; tsv: with their scores; or jsonl
  --device cpu          cpu or cuda (default: cuda where there is one)

examples:
  echo "ein hund läuft am strand ." | clusterformer translate --checkpoint runs/multi30k/1
  clusterformer translate --checkpoint runs/multi30k/1 --input de.txt --nbest 5 --format tsv
"""

_OPTIONS = ("beam", "nbest", "length_penalty")


def run(arguments: list[str]) -> None:
    """Read sentences, write translations."""
    from clusterformer.cli.options import take

    given = []
    for option in _OPTIONS:
        value, arguments = take(arguments, f"--{option}")
        if value is not None:
            given.append(f"--data.{option}={value}")
    answer([*arguments, *given], ("text", "tsv", "jsonl"), _load)


def load(checkpoint: str, device: str | None = None) -> Predictor:
    """A translator from a run folder or `.ckpt` file.

    Example:
        >>> translator = load("runs/multi30k/1")
        >>> [found["translation"] for found in translator(["ein hund läuft am strand ."])]

    Args:
        checkpoint: The run folder (its best checkpoint) or file.
        device: "cpu" or "cuda"; None: cuda where there is one.

    Raises:
        InputError: for a checkpoint of another task, or a file that is no checkpoint.
    """
    return Predictor(_load(["--checkpoint", checkpoint]), device)


def _load(arguments: list[str]) -> Trained:
    from clusterformer.cli import evaluation
    from clusterformer.tasks.translation import Translation

    trained = evaluation.load(arguments)
    task = trained.options.datamodule
    if not isinstance(task, Translation):
        raise InputError(
            f"{trained.path}: translate needs a model of Translation, this is one of "
            f"{type(task).__name__}; use clusterformer predict"
        )
    return trained
