"""`clusterformer test`: measure a trained model on the test data."""

from __future__ import annotations

HELP = """
usage: clusterformer test --checkpoint RUN [options]

Measure a trained model on the test data of its task.

  --checkpoint RUN           run folder (its best checkpoint), or a .ckpt file
  --average N                the mean of the weights after the last N validations, or best:N; of a
                             training with --keep N
  --data.root DIR            where the data sets are, if not where they were
  --trainer.accelerator cpu  or any other option of Lightning's Trainer
  --help-all                 every option there is
"""


def run(arguments: list[str]) -> None:
    """Print `name<TAB>value` for each measure."""
    from clusterformer.cli.evaluation import evaluate

    evaluate(arguments, "test")
