"""`clusterformer test`: measure a trained model on the test data."""

from __future__ import annotations

HELP = """
usage: clusterformer test --checkpoint RUN [options]

Measure a trained model on the test data of its task.

  --checkpoint RUN           run directory (its best checkpoint), or a .ckpt file
  --average N                mean of the weights after the last N validations, or best:N; needs a
                             training with --keep N
  --data.test FILE           other test data, in the layout of the training data
  --model.attention CLASS    another mechanism, without weights of its own (MultipoleAttention)
  --report DIR               write report.json, predictions.csv and confusion.png (classifiers)
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
    from clusterformer.compare.child import end_with_parent

    end_with_parent()
    evaluate(arguments, "test")
