"""`clusterformer validate`: measure a trained model on the validation data."""

from __future__ import annotations

HELP = """
usage: clusterformer validate --checkpoint RUN [options]

Measure a trained model on the validation data of its training.

  --checkpoint RUN           run directory (its best checkpoint), or a .ckpt file
  --average N                mean of the weights after the last N validations, or best:N; needs a
                             training with --keep N
  --out FILE.json            write the measures unrounded, with the command, commit and machine
  --wandb                    log the measures to Weights & Biases, beside the training's
  --data.root DIR            folder of the data sets, if it has moved
  --trainer.accelerator cpu  or any other option of Lightning's Trainer
  --trust PACKAGE            allow the checkpoint to import a class of that package; names of
                             several with commas. Classes of clusterformer need no trust
  --help-all                 all options
"""


def run(arguments: list[str]) -> None:
    """Print `name<TAB>value` for each measure."""
    from clusterformer.cli.evaluation import evaluate

    evaluate(arguments, "validate")
