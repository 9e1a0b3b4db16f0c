"""`clusterformer translate`: translate texts with a trained model, line by line as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterformer.cli.predict import predict_lines

if TYPE_CHECKING:
    from clusterformer.api import TrainedModel

HELP = """
usage: clusterformer translate --checkpoint RUN [--input FILE] [options]

Translate texts with a trained model. It reads one sentence per line, and writes its translation at
once. No data set is needed: the checkpoint contains the tokenizer.

  --checkpoint RUN      run directory (its best checkpoint), or a .ckpt file
  --average N           mean of the weights after the last N validations, or best:N
  --input FILE          sentences, UTF-8, one per line; a file or pipe (default: standard input)
                        an empty line stays one. A table by its ending .csv, .tsv or .jsonl: its
                        columns are passed through
  --text_column C       table: column of the sentences, by name or by number from 1
  --beam 5              number of hypotheses; 1 takes the most probable token at each step
  --nbest 1             translations of each sentence, one per line, the best first
  --length_penalty 1.0  above 1 favours long translations, below 1 short ones
  --format text         only translations; tsv: with their scores; or jsonl
  --device cpu          cpu, cuda or cuda:1 (default: cuda if there is one)
  --trust PACKAGE       allow the checkpoint to import a class of that package

examples:
  echo "ein hund läuft am strand ." | clusterformer translate --checkpoint runs/multi30k/1
  clusterformer translate --checkpoint runs/multi30k/1 --input de.txt --nbest 5 --format tsv
"""


def run(arguments: list[str]) -> None:
    """Read sentences, write translations."""
    from clusterformer.cli.options import pop_number
    from clusterformer.tasks.translation import Translation

    beam, arguments = pop_number(arguments, "--beam", int)
    nbest, arguments = pop_number(arguments, "--nbest", int)
    length_penalty, arguments = pop_number(arguments, "--length_penalty", float)

    def translate(model: TrainedModel, lines: list[str]) -> list[list[dict[str, Any]]]:
        usual = model.task.search.nbest if isinstance(model.task, Translation) else 1
        return model.translate(
            lines, beam=beam, length_penalty=length_penalty, nbest=usual if nbest is None else nbest
        )

    predict_lines(
        arguments, ("text", "tsv", "jsonl"), translate, empty={"translation": "", "score": 0.0}
    )
